//! What a controller still has to look at, what it has begun, and whose turn it is. An object that has always
//! something to do keeps no other waiting.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    ops::Bound,
};

use tokio::{
    task::{JoinError, JoinSet},
    time::Instant,
};

/// The work of one controller, by the key of what it is about.
pub(crate) struct WorkQueue<K, D> {
    waiting: BTreeSet<K>,
    /// When a key is waiting again.
    due: BTreeMap<K, Instant>,
    /// The key that something was begun for last. Those behind it are next.
    turn: Option<K>,
    under_way: JoinSet<(K, D)>,
    /// Those about which nothing else is begun before what is under way has ended.
    busy: BTreeSet<K>,
    at_once: usize,
}

impl<K: Ord + Clone + Send + 'static, D: Send + 'static> WorkQueue<K, D> {
    /// `at_once`: so many things are under way at most. An API server that hangs holds up so many for some
    /// seconds.
    pub(crate) fn new(at_once: usize) -> Self {
        Self {
            waiting: BTreeSet::new(),
            due: BTreeMap::new(),
            turn: None,
            under_way: JoinSet::new(),
            busy: BTreeSet::new(),
            at_once,
        }
    }

    /// These are looked at.
    pub(crate) fn wait(&mut self, keys: impl IntoIterator<Item = K>) {
        self.waiting.extend(keys);
    }

    pub(crate) fn is_waiting(&self, key: &K) -> bool {
        self.waiting.contains(key)
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// This one is looked at again then, or before.
    pub(crate) fn wake(&mut self, key: &K, at: Instant) {
        let due = self.due.entry(key.clone()).or_insert(at);
        *due = at.min(*due);
    }

    /// Whether something else may be begun.
    pub(crate) fn has_room(&self) -> bool {
        self.under_way() < self.at_once
    }

    /// How much is under way.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    pub(crate) fn is_busy(&self, key: &K) -> bool {
        self.busy.contains(key)
    }

    /// Begins something about this one, and nothing else before it has ended. Its turn is over.
    pub(crate) fn begin(&mut self, key: &K, doing: impl Future<Output = D> + Send + 'static) {
        self.busy.insert(key.clone());
        self.begin_beside(key, doing);
    }

    /// The same, beside whatever else is begun about this one.
    pub(crate) fn begin_beside(
        &mut self,
        key: &K,
        doing: impl Future<Output = D> + Send + 'static,
    ) {
        self.turn = Some(key.clone());
        let key = key.clone();
        self.under_way.spawn(async move { (key, doing.await) });
    }

    /// Takes the first that is not busy behind the one whose turn it was, else the first of all.
    pub(crate) fn next(&mut self) -> Option<K> {
        let behind = self.turn.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.waiting.range::<K, _>((behind, Bound::Unbounded));
        let mut in_turn = behind.chain(&self.waiting);
        let key = in_turn.find(|key| !self.busy.contains(key)).cloned()?;
        self.waiting.remove(&key);
        self.due.remove(&key);
        Some(key)
    }

    /// When the first is waiting again.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due.values().min().copied()
    }

    /// Those whose time has come are waiting.
    pub(crate) fn wake_due(&mut self, now: Instant) {
        let ready = self.due.extract_if(.., |_, at| *at <= now);
        self.waiting.extend(ready.map(|(key, _)| key));
    }

    /// What has ended next; what it was about is looked at again. `None`: nothing is under way. The error is a
    /// panic, and what it was about stays busy.
    pub(crate) async fn ended(&mut self) -> Option<Result<(K, D), JoinError>> {
        let ended = self.under_way.join_next().await?;
        if let Ok((key, _)) = &ended {
            self.busy.remove(key);
            self.waiting.insert(key.clone());
        }
        Some(ended)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn each_has_its_turn() {
        let mut queue: WorkQueue<&str, ()> = WorkQueue::new(1);
        let mut order = Vec::new();
        // All wait again at once after each.
        for _ in 0..5 {
            queue.wait(["a", "b", "c"]);
            let one = queue.next().unwrap();
            order.push(one);
            queue.begin(&one, async {});
            assert!(!queue.has_room());
            assert_eq!(queue.ended().await.unwrap().unwrap(), (one, ()));
        }
        assert_eq!(order, ["a", "b", "c", "a", "b"]);
        // One for which nothing was begun has not had its turn.
        for _ in 0..2 {
            queue.wait(["a", "b", "c"]);
            assert_eq!(queue.next(), Some("c"));
        }
    }

    #[tokio::test]
    async fn nothing_is_begun_twice_about_one_unless_it_may_be() {
        let mut queue: WorkQueue<&str, u8> = WorkQueue::new(4);
        queue.wait(["a", "b"]);
        queue.begin(&"a", async { 1 });
        assert!(queue.is_busy(&"a") && queue.has_room());
        assert_eq!(queue.next(), Some("b"));
        assert_eq!(queue.next(), None, "a waits until it has ended");
        assert_eq!(queue.ended().await.unwrap().unwrap(), ("a", 1));
        assert_eq!(queue.next(), Some("a"));
        for (number, key) in [(2, "a"), (3, "a")] {
            queue.begin_beside(&key, async move { number });
        }
        assert_eq!((queue.under_way(), queue.is_busy(&"a")), (2, false));
        for _ in 0..2 {
            let (key, _) = queue.ended().await.unwrap().unwrap();
            assert_eq!(queue.next(), Some(key), "it is looked at after each");
        }
        assert!(queue.ended().await.is_none() && queue.next().is_none());
    }

    #[test]
    fn one_that_is_due_waits_again_and_no_earlier() {
        let mut queue: WorkQueue<&str, ()> = WorkQueue::new(1);
        let now = Instant::now();
        let second = Duration::from_secs(1);
        assert_eq!(queue.next_due(), None);
        queue.wake(&"a", now + second * 2);
        queue.wake(&"a", now + second);
        queue.wake(&"a", now + second * 3);
        assert_eq!(queue.next_due(), Some(now + second), "the earliest counts");
        queue.wake_due(now);
        assert!(queue.is_empty());
        queue.wake_due(now + second);
        assert!(queue.is_waiting(&"a") && queue.next_due().is_none());
        // Whoever is looked at before is not woken besides.
        queue.wake(&"a", now + second);
        assert_eq!(queue.next(), Some("a"));
        assert_eq!(queue.next_due(), None);
    }
}
