"""Operations on containers against bare torch loops and the published release."""
