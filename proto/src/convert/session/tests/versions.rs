//! The versions in a hello, and the welcome that answers them.

use super::{refused::good_hello, *};

#[test]
fn a_welcome_has_a_bearable_heartbeat() {
    let welcome = Welcome {
        term: Term(3),
        epoch: NodeEpoch(9),
        heartbeat: Duration::from_millis(500),
        protocol: protocol::NEWEST,
    };
    assert_eq!(welcome_from_wire(welcome_to_wire(&welcome)), Ok(welcome));
    let wire = v1::Welcome {
        heartbeat_interval_ms: 0,
        ..Default::default()
    };
    let error = "welcome.heartbeat_interval_ms: is 0, must be between 10 and 60000";
    assert_eq!(welcome_from_wire(wire).unwrap_err().to_string(), error);
}

#[test]
fn each_end_says_what_it_speaks() {
    let before = v1::Hello {
        protocol: 1,
        ..good_hello()
    };
    assert_eq!(
        speaks_from_wire(&before),
        Ok(Speaks {
            oldest: 1,
            newest: 1
        }),
        "version 1 named one version only"
    );
    let newer = v1::Hello {
        protocol: 5,
        protocol_oldest: 4,
        ..good_hello()
    };
    assert_eq!(
        speaks_from_wire(&newer),
        Ok(Speaks {
            oldest: 4,
            newest: 5
        })
    );
    let welcome = |protocol| {
        welcome_from_wire(v1::Welcome {
            heartbeat_interval_ms: 1_000,
            protocol,
            ..Default::default()
        })
    };
    assert_eq!(
        welcome(0).map(|welcome| welcome.protocol),
        Err(malformed(
            "welcome.protocol",
            "is 1, this agent speaks 4 to 5"
        )),
        "so did its coordinators"
    );
    assert_eq!(welcome(4).map(|welcome| welcome.protocol), Ok(4));
    assert_eq!(
        welcome(7).unwrap_err().to_string(),
        "welcome.protocol: is 7, this agent speaks 4 to 5"
    );
}
