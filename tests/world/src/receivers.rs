//! Who is told of what happens in the world: one receiver, of everything. It takes nothing, so all that it was to be told is
//! seen.

use std::{collections::BTreeSet, time::Duration};

use muster_core::fleet::notify::{Kind, Rule, Rules};

pub(crate) fn of_all() -> Rules {
    let receivers = BTreeSet::from(["operators".to_owned()]);
    let rule = Rule {
        on: Kind::ALL.into(),
        namespaces: BTreeSet::new(),
        receivers: receivers.clone(),
    };
    Rules {
        receivers,
        rules: vec![rule],
        waiting: Duration::from_secs(60),
        ..Rules::default()
    }
}
