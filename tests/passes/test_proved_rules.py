"""Every rewrite rule of the simplifier is proved for bounded sizes, or listed as unproved.

The rules come from the simplifier's own table.  `programs` writes all small programs that end in an
op; where a rule changes one, it must give the same for every input, bit by bit but for NaNs:

- elementwise ops do to each element what they do to all: one array holds all values of small types;
- what moves elements does so whatever they are: numbers that all differ stand for any;
- numbers that say places, trips or branches, and bools, take every value that makes a difference;
- what is linear in each operand is proved on unit vectors.
"""

from __future__ import annotations

import pytest

from hlo_mlc.graph.rewrite import Rule, apply_rules
from hlo_mlc.graph.text import format_graph
from hlo_mlc.graph.verify import verify_graph
from hlo_mlc.ops.registry import evaluate_graph, references
from hlo_mlc.passes.simplify import graph_rules
from proving.inputs import same_bits
from proving.meanings import MEANINGS
from proving.programs import programs
from proving.reached import Reached

# Rules that nothing here proves, and why.
UNPROVED = {"power_of_literal": "products and roots are rounded otherwise than a power"}

TABLE = graph_rules(references)
RULES = {
    rule: [op for op, rules in TABLE.items() if rule in rules]
    for rules in TABLE.values()
    for rule in rules
}


def why_not_proved(rule: Rule) -> str:
    """A counterexample, an op that nothing shows the rule of, a line that nothing reaches; ""
    where there is none."""
    reached = Reached(rule)
    for op in RULES[rule]:
        applied = 0
        for program in programs(op):
            before = program.graph
            with reached:
                after = apply_rules(before, {op: (rule,)})
            if after is before:
                continue
            applied += 1
            verify_graph(after)
            for arrays in program.inputs(before):
                results = [
                    evaluate_graph(graph, arrays, instead=MEANINGS) for graph in (after, before)
                ]
                if not all(map(same_bits, *results)):
                    return f"{format_graph(before)}\n->\n{format_graph(after)}\n{results}"
        if not applied:
            return f"it was never applied to {op}"
    return f"lines {reached.missing} were not reached" if reached.missing else ""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_is_proved_or_listed(rule: Rule) -> None:
    reason = why_not_proved(rule)
    assert bool(reason) == (rule.__name__ in UNPROVED), reason or "it is proved, but listed"


def test_nine_in_ten_are_proved() -> None:
    assert {rule.__name__ for rule in RULES} >= UNPROVED.keys()
    assert len(UNPROVED) <= len(RULES) / 10
