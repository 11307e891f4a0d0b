//! Follows a collection of the board: the items as they are now, then every change in its latest state.

use std::{collections::BTreeMap, sync::Arc};

use muster_handle::board::Collection;
use tokio::sync::watch;

use crate::api::feed::Out;

/// How the items of one collection are followed.
pub(crate) struct Kind<K, V, T> {
    /// Whether the client asked for it.
    pub wanted: Box<dyn Fn(&K) -> bool + Send + Sync>,
    /// Tells an item from a later one of the same name.
    pub identity: fn(&V) -> &str,
    pub changed: Box<dyn Fn(&V) -> T + Send + Sync>,
    pub gone: fn(&K, &str) -> T,
}

/// Runs until the client or the engine is gone.
pub(crate) async fn follow<K, V, T>(
    mut collection: watch::Receiver<Collection<K, V>>,
    kind: Kind<K, V, T>,
    out: Out<T>,
) where
    K: Ord + Clone,
    V: PartialEq,
{
    let mut known: BTreeMap<K, String> = BTreeMap::new();
    let mut seen = 0;
    loop {
        let mut messages = Vec::new();
        let changed: Vec<(K, Arc<V>)> = {
            let collection = collection.borrow_and_update();
            if collection.removed_since(seen) {
                known.retain(|key, identity| {
                    let there = collection.get(key).is_some();
                    if !there {
                        messages.push((kind.gone)(key, identity));
                    }
                    there
                });
            }
            let since = collection.since(seen).filter(|(key, _)| (kind.wanted)(key));
            let changed = since
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            seen = collection.revision();
            changed
        };
        for message in messages {
            if out.send(Ok(message)).await.is_err() {
                return;
            }
        }
        for (key, value) in changed {
            let identity = (kind.identity)(&value).to_owned();
            let before = known
                .insert(key.clone(), identity.clone())
                .filter(|before| *before != identity);
            let replaced = before.map(|before| (kind.gone)(&key, &before));
            for message in replaced.into_iter().chain([(kind.changed)(&value)]) {
                if out.send(Ok(message)).await.is_err() {
                    return;
                }
            }
        }
        tokio::select! {
            changed = collection.changed() => if changed.is_err() { return },
            () = out.closed() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows `name=identity` for a change and `-name=identity` for a removed item.
    fn kind() -> Kind<u8, String, String> {
        Kind {
            wanted: Box::new(|key| *key < 10),
            identity: |value| value,
            changed: Box::new(|value| format!("+{value}")),
            gone: |key, identity| format!("-{key}:{identity}"),
        }
    }

    #[tokio::test]
    async fn a_thing_replaced_by_another_of_its_name_is_gone_first() {
        let (collection, receiver) = watch::channel(Collection::default());
        let put = |key: u8, value: &str| {
            collection.send_modify(|collection| assert!(collection.put(key, value.to_owned())))
        };
        let remove =
            |key: u8| collection.send_modify(|collection| assert!(collection.remove(&key)));
        put(1, "a");
        put(99, "unwanted");
        let (out, mut messages) = Out::<String>::new(1);
        let test = async {
            let mut next = async || (*messages.recv().await.unwrap()).unwrap();
            assert_eq!(next().await, "+a");
            put(2, "b");
            assert_eq!(next().await, "+b");
            // While nobody looked, 1 was replaced by another of the same name, and 2 was removed
            // for good.
            remove(1);
            put(1, "c");
            remove(2);
            assert_eq!(next().await, "-2:b");
            assert_eq!(next().await, "-1:a");
            assert_eq!(next().await, "+c");
        };
        tokio::select! {
            () = follow(receiver, kind(), out) => panic!("ended early"),
            () = test => {}
        }
    }
}
