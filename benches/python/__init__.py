"""Operations of tensordicts, compared with bare loops and the published release."""
