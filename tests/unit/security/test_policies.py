"""Which policy entry decides, compared with a plain model that filters, sorts and takes the first."""

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.errors import ConfigError
from sprocketmq.security.policies import (
    Action,
    Context,
    Policy,
    PolicyEntry,
    PolicyIndex,
    PolicyType,
    Verdict,
    parse_actions,
    policy_entry,
    source_address,
)
from sprocketmq.security.resources import EVERY_NAME, Match, ResourceType, parse_pattern

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
HERE = ip_address("10.1.2.3")


def decide(*entries, resource="Topic:orders", actions=("Pub",), source=HERE, default=()):
    kind, _, name = resource.partition(":")
    policies = [Policy(PolicyType.DEFAULT, tuple(policy_entry(*entry) for entry in default))]
    policies.append(Policy(PolicyType.CUSTOM, tuple(policy_entry(*entry) for entry in entries)))
    return PolicyIndex(policies).decide(Context(ResourceType(kind), name, frozenset(map(Action, actions))), source)


# --- the facts of the reference, one by one ---


def test_without_an_entry_nothing_is_allowed():
    assert decide() is Verdict.UNMATCHED


@pytest.mark.parametrize("resource", ["*", "Topic:*", "Topic:o*", "Topic:orders*", "Topic:orders", "topic:orders", "TOPIC:ord*ignored"])
def test_an_allow_for_a_matching_resource_allows(resource):
    assert decide((resource, ["Pub"], "Allow")) is Verdict.ALLOWED


@pytest.mark.parametrize(
    "resource", ["Group:*", "Group:orders", "Topic:order", "Topic:Orders", "Topic:ordersx*", "Cluster:*", "Namespace:orders"]
)
def test_an_allow_for_another_resource_does_not(resource):
    assert decide((resource, ["All"], "Allow")) is Verdict.UNMATCHED


def test_a_literal_allow_beats_a_deny_of_a_prefix():
    assert decide(("Topic:ord*", ["Pub"], "Deny"), ("Topic:orders", ["Pub"], "Allow")) is Verdict.ALLOWED


def test_the_longer_prefix_decides():
    assert decide(("Topic:o*", ["Pub"], "Allow"), ("Topic:ord*", ["Pub"], "Deny")) is Verdict.DENIED
    assert decide(("Topic:o*", ["Pub"], "Deny"), ("Topic:ord*", ["Pub"], "Allow")) is Verdict.ALLOWED


def test_every_topic_is_more_specific_than_everything():
    assert decide(("*", ["Pub"], "Deny"), ("Topic:*", ["Pub"], "Allow")) is Verdict.ALLOWED
    assert decide(("*", ["Pub"], "Allow"), ("Topic:*", ["Pub"], "Deny")) is Verdict.DENIED


def test_of_the_same_rank_the_deny_decides():
    assert decide(("Topic:ord*a", ["Pub"], "Allow"), ("Topic:ord*b", ["Pub"], "Deny")) is Verdict.DENIED


def test_an_entry_with_one_of_the_wanted_actions_decides_for_all_of_them():
    deny = ("Topic:orders", ["Pub"], "Deny")
    allow = ("Topic:*", ["Sub"], "Allow")
    assert decide(deny, allow, actions=("Pub", "Sub", "Get")) is Verdict.DENIED
    assert decide(deny, allow, actions=("Sub", "Get")) is Verdict.ALLOWED


def test_all_stands_for_every_action():
    assert decide(("Topic:orders", ["All"], "Allow"), actions=("Delete",)) is Verdict.ALLOWED


def test_default_policies_count_when_no_custom_one_matches():
    assert decide(default=[("*", ["All"], "Allow")]) is Verdict.ALLOWED
    assert decide(("*", ["Pub"], "Deny"), default=[("Topic:orders", ["Pub"], "Allow")]) is Verdict.DENIED
    assert decide(("*", ["Sub"], "Deny"), default=[("Topic:orders", ["Pub"], "Allow")]) is Verdict.ALLOWED


@pytest.mark.parametrize(
    ("sources", "peer", "matches"),
    [
        (["10.1.2.3"], "10.1.2.3", True),
        (["10.1.2.4"], "10.1.2.3", False),
        (["10.0.0.0/8"], "10.1.2.3", True),
        (["192.168.0.0/16", "10.1.2.0/24"], "10.1.2.3", True),
        (["10.1.2.77/24"], "10.1.2.3", True),
        (["10.0.0.0/8"], "::ffff:10.1.2.3", True),
        (["2001:db8::/32"], "2001:db8::1", True),
        (["[2001:db8::1]"], "2001:db8::1", True),
        (["fe80::/10"], "fe80::1%eth0", True),
        (["2001:db8::/32"], "10.1.2.3", False),
        (["0.0.0.0/0"], "unix", False),
    ],
)
def test_source_addresses_limit_an_entry(sources, peer, matches):
    verdict = decide(("Topic:orders", ["Pub"], "Allow", sources), source=source_address(peer))
    assert verdict is (Verdict.ALLOWED if matches else Verdict.UNMATCHED)


def test_a_name_left_out_needs_an_entry_for_every_name():
    assert decide(("Topic:*", ["Pub"], "Allow"), resource=f"Topic:{EVERY_NAME}") is Verdict.ALLOWED
    assert decide(("Topic:o*", ["Pub"], "Allow"), resource=f"Topic:{EVERY_NAME}") is Verdict.UNMATCHED


# --- against the model ---


NAMES = st.text("ab%", max_size=4)
RESOURCES = st.one_of(
    st.just("*"),
    st.builds(
        lambda kind, name, star: f"{kind}:{name}{star}" if name + star else f"{kind}:*",
        st.sampled_from(["Topic", "Group"]),
        NAMES,
        st.sampled_from(["", "*"]),
    ),
)
ENTRIES = st.builds(
    policy_entry,
    RESOURCES,
    st.lists(st.sampled_from(["All", "Pub", "Sub", "Get"]), min_size=1, max_size=2),
    st.sampled_from(["Allow", "Deny"]),
    st.lists(st.sampled_from(["10.1.2.3", "10.0.0.0/8", "192.168.0.0/16"]), max_size=1),
)


def model(policies, context, source):
    for policy_type in ("Custom", "Default"):
        found = []
        for policy in policies:
            for entry in policy.entries if policy.type == policy_type else ():
                text = str(entry.pattern)
                kind, _, name = text.partition(":")
                if text == "*":
                    rank = (3, 0)
                elif kind != context.type:
                    continue
                elif name == "*":
                    rank = (2, 0)
                elif name.endswith("*"):
                    if not context.name.startswith(name[:-1]):
                        continue
                    rank = (1, -len(name))
                elif name == context.name:
                    rank = (0, 0)
                else:
                    continue
                if not (set(entry.actions) & context.actions or "All" in entry.actions):
                    continue
                if entry.source_ips and not any(source in ip_network(text) for text in entry.source_ips):
                    continue
                found.append((rank, entry.decision != "Deny"))
        if found:
            return Verdict.ALLOWED if min(found)[1] else Verdict.DENIED
    return Verdict.UNMATCHED


@given(
    st.lists(st.builds(Policy, st.sampled_from(PolicyType), st.lists(ENTRIES, max_size=8).map(tuple)), max_size=3),
    st.builds(
        Context,
        st.sampled_from([TOPIC, GROUP]),
        NAMES,
        st.frozensets(st.sampled_from([Action.PUB, Action.SUB, Action.GET]), min_size=1),
    ),
    st.sampled_from(["10.1.2.3", "10.9.9.9", "192.168.1.1"]).map(ip_address),
)
def test_the_index_decides_as_the_model_does(policies, context, source):
    assert PolicyIndex(policies).decide(context, source) is model(policies, context, source)


# --- texts ---


@given(RESOURCES)
def test_a_pattern_reads_back_what_it_writes(text):
    pattern = parse_pattern(text)
    assert parse_pattern(str(pattern)) == pattern


@pytest.mark.parametrize(
    "text", ["", "orders", "Topic", "Topic:", "Topic: ", ":orders", "Queue:a", "Any:a", "Topic:a\nb", "Topic:" + "a" * 600]
)
def test_a_text_that_names_no_resource_is_refused(text):
    with pytest.raises(ConfigError):
        parse_pattern(text)


def test_what_stands_after_the_first_star_is_no_part_of_the_prefix():
    pattern = parse_pattern("Topic:a*b*c")
    assert (pattern.type, pattern.match, pattern.name) == (TOPIC, Match.PREFIX, "a")


def test_unknown_actions_are_ignored_and_any_is_refused():
    assert parse_actions(["pub", "Fly", "SUB", "Pub"]) == (Action.PUB, Action.SUB)
    for texts in ([], ["Fly"], ["Any", "Pub"]):
        with pytest.raises(ConfigError):
            parse_actions(texts)


@pytest.mark.parametrize("source", ["10.1.2", "10.1.2.3/33", "example.com"])
def test_a_source_that_is_no_address_is_refused(source):
    with pytest.raises(ConfigError, match="source address"):
        policy_entry("*", ["All"], "Allow", [source])


def test_many_policies_cost_a_decision_no_more_lookups():
    """The index looks at what matches, so the entries that ``decide`` touches do not grow with those that exist."""
    touched = []

    class Counted(PolicyEntry):
        def applies(self, actions, source):
            touched.append(self)
            return super().applies(actions, source)

    entries = [policy_entry(f"Topic:t{number}{'*' if number % 2 else ''}", ["Pub"], "Allow") for number in range(10_000)]
    counted = [Counted(entry.pattern, entry.actions, entry.decision) for entry in entries]
    index = PolicyIndex([Policy(PolicyType.CUSTOM, tuple(counted))])
    assert index.decide(Context(TOPIC, "t9998", frozenset({Action.PUB})), None) is Verdict.ALLOWED
    assert index.decide(Context(TOPIC, "u", frozenset({Action.PUB})), None) is Verdict.UNMATCHED
    assert len(touched) <= 5
