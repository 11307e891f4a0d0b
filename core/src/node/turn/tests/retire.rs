//! A worker pod whose job is over lets its container end.

use super::{fixture::desired, *};

#[test]
fn a_pod_ends_its_container_only_when_it_holds_nothing() {
    let mut node = node();
    let retire = |runs| {
        Input::Desired(Desired {
            retire: Some("why".to_owned()),
            ..desired(1, 1, runs)
        })
    };
    let ends = Effect::Retire {
        last_words: "why".to_owned(),
    };
    let effects = told(&mut node, retire(vec![running("a", 1)]));
    assert!(!effects.contains(&ends), "{effects:?}");
    let mut empty = super::node();
    let effects = told(&mut empty, Input::Desired(desired(1, 1, Vec::new())));
    assert!(!effects.contains(&ends), "{effects:?}");
    let effects = told(&mut empty, retire(Vec::new()));
    assert!(effects.contains(&ends), "{effects:?}");
}
