use super::*;
use crate::id::NodeEpoch;

fn registry(now: Timestamp) -> Registry {
    let mut registry = Registry::default();
    let record = NodeRecord {
        name: "a".into(),
        epoch: NodeEpoch(1),
        boot_id: "boot".into(),
        first_seen: now,
        gone: false,
        gone_since: None,
        cordon: None,
        pod_of: None,
        hold_off: None,
        ended: None,
        overruled: None,
        told_excluded: None,
        halt: None,
        marks: Vec::new(),
    };
    registry.admit(record, now);
    registry
}

#[test]
fn silence_leads_from_ready_over_suspect_to_lost() {
    let (policy, start) = (Policy::default(), Timestamp(1_000_000));
    let mut registry = registry(start);
    registry.bind(SessionId(1), &"a".into(), start);
    let at = |ms| start + Duration::from_millis(ms);
    assert!(
        registry
            .expire(at(2_999), policy.heartbeat, &policy, false)
            .is_empty()
    );
    assert_eq!(
        registry
            .expire(at(3_000), policy.heartbeat, &policy, false)
            .len(),
        1
    );
    assert_eq!(registry.nodes[&"a".into()].liveness, Liveness::Suspect);
    assert!(
        registry
            .expire(at(4_999), policy.heartbeat, &policy, false)
            .is_empty()
    );
    assert_eq!(
        registry
            .expire(at(5_000), policy.heartbeat, &policy, false)
            .len(),
        1
    );
    assert_eq!(registry.nodes[&"a".into()].liveness, Liveness::Lost);
    assert!(
        registry.heard(SessionId(1), at(6_000), false),
        "a message ends the doubt"
    );
}

#[test]
fn a_large_fleet_is_judged_by_the_slow_heartbeat_it_was_given() {
    let (policy, start) = (Policy::default(), Timestamp(0));
    let mut registry = registry(start);
    registry.bind(SessionId(1), &"a".into(), start);
    let slow = Duration::from_secs(5);
    assert!(
        registry
            .expire(start + 2 * slow, slow, &policy, false)
            .is_empty()
    );
    assert_eq!(
        registry.next_silence_limit(slow, &policy),
        Some(start + 3 * slow)
    );
    assert_eq!(
        registry
            .expire(start + 3 * slow, slow, &policy, false)
            .len(),
        1
    );
}

#[test]
fn a_node_is_judged_by_the_heartbeat_it_was_given_when_the_fleet_has_shrunk() {
    let (policy, start) = (Policy::default(), Timestamp(0));
    let mut registry = registry(start);
    registry.bind(SessionId(1), &"a".into(), start);
    let slow = Duration::from_secs(5);
    registry.nodes.get_mut(&"a".into()).unwrap().heartbeat = slow;
    assert!(
        registry
            .expire(start + 2 * slow, policy.heartbeat, &policy, false)
            .is_empty()
    );
    assert_eq!(
        registry.next_silence_limit(policy.heartbeat, &policy),
        Some(start + 3 * slow)
    );
    assert_eq!(
        registry
            .expire(start + 3 * slow, policy.heartbeat, &policy, false)
            .len(),
        1
    );
}

#[test]
fn messages_put_a_verdict_off_and_never_away() {
    let (policy, start) = (Policy::default(), Timestamp(1_000_000));
    let mut registry = registry(start);
    registry.bind(SessionId(1), &"a".into(), start);
    let at = |ms| start + Duration::from_millis(ms);
    assert!(
        registry
            .expire(at(0), policy.heartbeat, &policy, false)
            .is_empty()
    );
    registry.heard(SessionId(1), at(2_000), false);
    assert!(
        registry
            .expire(at(3_000), policy.heartbeat, &policy, false)
            .is_empty()
    );
    assert_eq!(
        registry.next_silence_limit(policy.heartbeat, &policy),
        Some(at(5_000))
    );
    assert_eq!(
        registry
            .expire(at(5_000), policy.heartbeat, &policy, false)
            .len(),
        1
    );
    assert!(
        registry.heard(SessionId(1), at(5_100), false),
        "a message ends the doubt"
    );
    assert_eq!(
        registry.next_silence_limit(policy.heartbeat, &policy),
        Some(at(8_100))
    );
    assert_eq!(
        registry
            .expire(at(8_100), policy.heartbeat, &policy, false)
            .len(),
        1
    );
}

#[test]
fn a_fleet_that_shrinks_is_judged_by_its_quicker_heartbeat_at_once() {
    let (policy, start) = (Policy::default(), Timestamp(1_000_000));
    let mut registry = Registry::default();
    for number in 0..=HEARTBEAT_STEP as u64 {
        let name = NodeName::from(format!("n{number}"));
        registry.admit(crate::fleet::budget::tests::node(name.as_str()), start);
        registry.bind(SessionId(number), &name, start);
    }
    let heartbeat = |registry: &Registry| {
        Duration::from_secs(registry.present().div_ceil(HEARTBEAT_STEP) as u64)
    };
    assert_eq!(heartbeat(&registry), 2 * policy.heartbeat);
    assert!(
        registry
            .expire(start, heartbeat(&registry), &policy, false)
            .is_empty()
    );
    assert_eq!(
        registry.next_silence_limit(heartbeat(&registry), &policy),
        Some(start + 6 * policy.heartbeat)
    );
    assert!(
        registry.set_gone(&"n0".into(), true, start)
            && !registry.set_gone(&"n0".into(), true, start)
    );
    assert_eq!(
        (registry.present(), heartbeat(&registry)),
        (HEARTBEAT_STEP, policy.heartbeat)
    );
    assert_eq!(
        registry
            .expire(
                start + 3 * policy.heartbeat,
                policy.heartbeat,
                &policy,
                false
            )
            .len(),
        HEARTBEAT_STEP + 1
    );
    registry.forget(&"n0".into());
    assert_eq!(registry.present(), HEARTBEAT_STEP, "it was not counted");
}

/// The index gives the same answer as a look at all nodes, whatever happens, in any order.
#[test]
fn the_next_verdict_is_the_earliest_of_all() {
    let policy = Policy::default();
    let (mut registry, mut now, mut draw) = (Registry::default(), Timestamp(1_000_000_000), 7u64);
    for round in 0..4_000u64 {
        draw = draw
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let (what, which) = (draw >> 33, (draw >> 45) % 12);
        now = now + Duration::from_millis((draw >> 50) % 900);
        let name = NodeName::from(format!("n{which}"));
        if !registry.nodes.contains_key(&name) {
            registry.admit(crate::fleet::budget::tests::node(name.as_str()), now);
        }
        match what % 16 {
            0 => registry.forget(&name),
            1 => registry.unhear(),
            2 => registry.discount(Duration::from_millis(700)),
            3 | 4 => drop(registry.bind(SessionId(round), &name, now)),
            5 => {
                let session = registry.nodes[&name].session;
                session
                    .and_then(|session| registry.disconnect(session, now, draw.is_multiple_of(3)));
            }
            _ => drop(
                registry.nodes[&name]
                    .session
                    .map(|session| registry.heard(session, now, false)),
            ),
        }
        let heartbeat = policy.heartbeat;
        let listening = (draw >> 40).is_multiple_of(2);
        let overdue = |node: &Node| match node.liveness {
            Liveness::Unknown => !listening,
            _ => node
                .next_silence_limit(heartbeat, &policy)
                .is_some_and(|at| at <= now),
        };
        let expected: Vec<NodeName> = registry
            .nodes
            .values()
            .filter(|node| overdue(node))
            .map(|node| node.record.name.clone())
            .collect();
        assert_eq!(
            registry.expire(now, heartbeat, &policy, listening),
            expected,
            "round {round}"
        );
        let earliest = registry
            .nodes
            .values()
            .filter_map(|node| node.next_silence_limit(heartbeat, &policy))
            .min();
        let next = registry.next_silence_limit(heartbeat, &policy);
        assert!(
            next <= earliest && next.is_some() == earliest.is_some(),
            "round {round}: {next:?} {earliest:?}"
        );
        let unheard = registry
            .nodes
            .values()
            .filter(|node| node.liveness == Liveness::Unknown)
            .count();
        assert_eq!(registry.unheard().count(), unheard, "round {round}");
    }
}

#[test]
fn a_broken_stream_is_suspect_at_once() {
    let start = Timestamp(0);
    let mut registry = registry(start);
    registry.bind(SessionId(1), &"a".into(), start);
    assert_eq!(
        registry.disconnect(SessionId(1), start, false),
        Some("a".into())
    );
    assert_eq!(registry.nodes[&"a".into()].liveness, Liveness::Suspect);
    assert_eq!(registry.disconnect(SessionId(1), start, false), None);
}

#[test]
fn who_was_not_heard_yet_is_not_lost_while_we_listen() {
    let (policy, start) = (Policy::default(), Timestamp(0));
    let mut registry = registry(start);
    assert!(
        registry
            .expire(
                start + Duration::from_secs(60),
                policy.heartbeat,
                &policy,
                true
            )
            .is_empty()
    );
    assert_eq!(
        registry
            .expire(
                start + Duration::from_secs(60),
                policy.heartbeat,
                &policy,
                false
            )
            .len(),
        1
    );
}

#[test]
fn our_own_stall_is_not_held_against_anybody() {
    let (policy, start) = (Policy::default(), Timestamp(0));
    let mut registry = registry(start);
    registry.bind(SessionId(1), &"a".into(), start);
    registry.discount(Duration::from_secs(20));
    assert!(
        registry
            .expire(
                start + Duration::from_secs(20),
                policy.heartbeat,
                &policy,
                false
            )
            .is_empty()
    );
}

#[test]
fn a_new_session_takes_the_place_of_the_old() {
    let start = Timestamp(0);
    let mut registry = registry(start);
    registry.bind(SessionId(1), &"a".into(), start);
    assert_eq!(
        registry.bind(SessionId(2), &"a".into(), start),
        Some(SessionId(1))
    );
    assert_eq!(
        registry.disconnect(SessionId(1), start, false),
        None,
        "the old stream's end says nothing any more"
    );
    assert!(registry.nodes[&"a".into()].is_ready());
}
