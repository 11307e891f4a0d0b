use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use muster_handle::handle::NoAnswer;
use serde_json::json;

use super::*;
use crate::follow::{About, News};

/// Objects of which the existence can be kept alone, and objects of which it cannot.
struct Named<const SHEDS: bool>;

type Key = (String, u32);

impl<const SHEDS: bool> Reader for Named<SHEDS> {
    type Object = ConfigMap;
    type Key = Key;
    /// The bytes that an object takes.
    type Kept = usize;

    const RETRY_MAX: Duration = Duration::ZERO;
    const ROOM: usize = 80;

    fn about(&self) -> About {
        unreachable!("nothing is read")
    }

    fn keep(_: ConfigMap) -> Option<(Key, usize)> {
        None
    }

    fn namespace<'a>(key: &'a Key, _: &'a usize) -> &'a str {
        &key.0
    }

    fn bytes(kept: &usize) -> usize {
        *kept
    }

    fn shed(kept: &mut usize) -> bool {
        if SHEDS {
            *kept = 0;
        }
        SHEDS
    }

    async fn tell(&mut self, _: News<Key, usize>) -> Result<(), NoAnswer> {
        Ok(())
    }
}

type All = BTreeMap<Key, usize>;

fn objects(namespace: &str, numbers: std::ops::Range<u32>, bytes: usize) -> All {
    numbers
        .map(|n| ((namespace.to_owned(), n), bytes))
        .collect()
}

/// The shares of a list in which there is room for so many.
fn listed<R: Reader<Key = Key, Kept = usize>>(
    all: &mut All,
    most: usize,
    before: &Shares<R>,
) -> Shares<R> {
    let mut shares = Shares::new(most);
    for (key, kept) in all.iter() {
        shares.put(key, kept);
    }
    shares.squeeze(all, before);
    shares
}

fn count(all: &All, namespace: &str) -> usize {
    all.keys().filter(|(of, _)| of == namespace).count()
}

fn crowded<R: Reader>(shares: &Shares<R>) -> Vec<&str> {
    shares.crowded.iter().map(String::as_str).collect()
}

#[test]
fn a_namespace_with_many_objects_takes_no_place_from_others() {
    let mut all = objects("greedy", 0..50, 1);
    all.extend(objects("modest", 0..2, 1));
    let none = Shares::<Named<false>>::new(16);
    let shares = listed(&mut all, 16, &none);
    // 16 of which an eighth stays free.
    assert_eq!((count(&all, "greedy"), count(&all, "modest")), (12, 2));
    assert_eq!(crowded(&shares), ["greedy"]);
    // With room for all nobody is crowded.
    let mut all = objects("greedy", 0..16, 1);
    let shares = listed(&mut all, 16, &none);
    assert_eq!((count(&all, "greedy"), crowded(&shares)), (16, vec![]));
}

#[test]
fn of_what_takes_too_many_bytes_the_existence_is_kept_or_nothing() {
    let mut all = objects("greedy", 0..50, 10);
    all.extend(objects("modest", 0..2, 10));
    let mut other = all.clone();
    // 80 bytes, of which an eighth stays free: 20 for the one and 50 for the other.
    let shares = listed(&mut all, 100, &Shares::<Named<true>>::new(100));
    let whole = |all: &All, of: &str| all.iter().filter(|((n, _), b)| n == of && **b > 0).count();
    assert_eq!(
        (whole(&all, "greedy"), whole(&all, "modest"), all.len()),
        (5, 2, 52)
    );
    assert_eq!(crowded(&shares), [""; 0]);
    let shares = listed(&mut other, 100, &Shares::<Named<false>>::new(100));
    assert_eq!((count(&other, "greedy"), count(&other, "modest")), (5, 2));
    assert_eq!(crowded(&shares), ["greedy"]);
}

#[test]
fn each_list_keeps_those_that_were_kept() {
    let mut all = objects("greedy", 10..40, 1);
    let before = listed(&mut all, 16, &Shares::<Named<false>>::new(16));
    let kept = all.clone();
    let mut again = objects("greedy", 0..40, 1);
    listed(&mut again, 16, &before);
    assert_eq!(again, kept);
}

#[test]
fn what_the_watch_tells_of_is_shared_out_too() {
    let mut shares = Shares::<Named<false>>::new(16);
    let mut hear = |namespace: &str, number: u32| {
        let key = (namespace.to_owned(), number);
        shares.hear(&key, &mut 1)
    };
    for number in 0..16 {
        assert_eq!(hear("greedy", number), Heard::Kept);
    }
    assert_eq!(hear("greedy", 16), Heard::NotKept { is_new: true });
    assert_eq!(hear("greedy", 17), Heard::NotKept { is_new: false });
    // Of one that is kept the changes are heard.
    assert_eq!(hear("greedy", 3), Heard::Kept);
    // The others give room when all are listed anew, and not before.
    assert_eq!(hear("modest", 0), Heard::ListAnew);
    let mut all = objects("greedy", 0..18, 1);
    all.extend(objects("modest", 0..1, 1));
    let mut shares = listed(&mut all, 16, &shares);
    assert_eq!((count(&all, "greedy"), count(&all, "modest")), (13, 1));
    let key = ("greedy".to_owned(), 99);
    assert_eq!(shares.hear(&key, &mut 1), Heard::NotKept { is_new: false });
    // Nothing is told twice, or forgotten by what goes.
    shares.remove(&("modest".to_owned(), 0));
    assert_eq!(
        shares.total,
        Takes {
            count: 13,
            bytes: 13
        }
    );
    assert!(!shares.takes.contains_key("modest"));
}

#[test]
fn an_object_that_grows_takes_no_more_than_its_namespace_s_share() {
    let mut shares = Shares::<Named<true>>::new(100);
    let key = |number: u32| ("a".to_owned(), number);
    assert_eq!(shares.hear(&key(0), &mut 60), Heard::Kept);
    let mut large = 60;
    assert_eq!((shares.hear(&key(1), &mut large), large), (Heard::Kept, 0));
    let mut shares = Shares::<Named<false>>::new(100);
    assert_eq!(shares.hear(&key(0), &mut 60), Heard::Kept);
    assert_eq!(shares.hear(&key(1), &mut 20), Heard::Kept);
    assert_eq!(shares.hear(&key(1), &mut 30), Heard::ListAnew);
}

#[test]
fn the_size_of_a_value_grows_with_it() {
    let small = size(&json!({ "a": [1, "b"] }));
    let large = size(&json!({ "a": [1, "b".repeat(1_000)] }));
    assert_eq!(large - small, 999);
}
