"""The rules about the differential fuzzer say exactly what they accept."""

from __future__ import annotations

import json
from pathlib import Path

LEDGER = Path(__file__).with_name("differential_allowed.json")
RULES = json.loads(LEDGER.read_text("utf-8"))["allowed"]
MOST = 300


def patterns(rule: dict[str, object], field: str) -> list[str]:
    found = rule[field]
    return found if isinstance(found, list) else [str(found)]


def test_the_rules_are_few() -> None:
    assert 0 < len(RULES) < MOST


def test_a_rule_has_a_reason_and_a_step() -> None:
    allowed = {"operation", "container", "kind", "step", "reason"}
    for rule in RULES:
        assert {"operation", "kind", "step", "reason"} <= rule.keys() <= allowed, rule
        assert len(rule["reason"]) > 20, rule


def test_a_rule_accepts_no_kind_of_difference_as_a_whole() -> None:
    for rule in RULES:
        for kind in patterns(rule, "kind"):
            assert kind.replace("*KeyError", "KeyError").count("*") == 0, rule
        # One rule is about the class of an error, whatever the program.
        whole = "MissingKeyError" in str(rule["kind"])
        assert whole or "*" not in patterns(rule, "step"), rule
        assert whole or "*" not in patterns(rule, "operation"), rule


def test_no_rule_is_there_twice() -> None:
    texts = [json.dumps(rule, sort_keys=True) for rule in RULES]
    assert len(set(texts)) == len(texts)
