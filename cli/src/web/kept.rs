//! A list that takes long to ask for is asked for seldom, and shown as of when it was asked. Ten thousand nodes take a second, most
//! of it the coordinator's, and a page that is seen looks again every two seconds.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use muster_rpc::credentials::now_us;

/// It is asked for during a tenth of the time at most, if that makes it no older than `YOUNG`.
const SHARE: u32 = 10;
const YOUNG: Duration = Duration::from_secs(15);
/// A list that takes this long is asked for in the background, unless the known one is older than `OLD`.
const LONG: Duration = Duration::from_millis(150);
const OLD: Duration = Duration::from_secs(30);

/// The newest answer, and whoever asks for the next.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    found: Mutex<Option<Found<T>>>,
    asking: tokio::sync::Mutex<()>,
}

/// An answer, and when it was given.
#[derive(Debug)]
pub(crate) struct Found<T> {
    pub(crate) list: Arc<Vec<T>>,
    /// Microseconds since 1970.
    pub(crate) as_of: u64,
    asked: Instant,
    took: Duration,
}

impl<T> Clone for Found<T> {
    fn clone(&self) -> Self {
        let list = self.list.clone();
        Self { list, ..*self }
    }
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self {
            found: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        }
    }
}

impl<T: Send + Sync + 'static> Kept<T> {
    /// The list as it is, or was a moment ago.
    pub(crate) async fn get<E, F>(self: &Arc<Self>, ask: F) -> Result<Found<T>, E>
    where
        E: Send + 'static,
        F: Future<Output = Result<Vec<T>, E>> + Send + 'static,
    {
        let known = self.known();
        let asked = known.as_ref().map(|found| found.asked);
        let age = known
            .as_ref()
            .map(|found| (found.asked.elapsed(), found.took));
        match (known, age) {
            (Some(found), Some((age, took))) if age < (took * SHARE).min(YOUNG) => Ok(found),
            (Some(found), Some((age, took))) if took >= LONG && age < OLD => {
                let kept = self.clone();
                // If a request is under way already, its answer is enough.
                tokio::spawn(async move {
                    if let Ok(_asks) = kept.asking.try_lock() {
                        let _ = kept.ask(ask).await;
                    }
                });
                Ok(found)
            }
            _ => {
                let _asks = self.asking.lock().await;
                // The request that this one waited for may have brought an answer.
                let newer = self.known().filter(|found| Some(found.asked) != asked);
                match newer {
                    Some(found) => Ok(found),
                    None => self.ask(ask).await,
                }
            }
        }
    }

    async fn ask<E>(&self, ask: impl Future<Output = Result<Vec<T>, E>>) -> Result<Found<T>, E> {
        let (as_of, asked) = (now_us(), Instant::now());
        let list = Arc::new(ask.await?);
        let took = asked.elapsed();
        let found = Found {
            list,
            as_of,
            asked,
            took,
        };
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(found.clone());
        Ok(found)
    }

    fn known(&self) -> Option<Found<T>> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.clone()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    async fn list(number: u32) -> Result<Vec<u32>, ()> {
        Ok(vec![number])
    }

    /// As if the newest answer had taken so long, and had been given so long ago.
    fn ages(kept: &Kept<u32>, took: Duration, ago: Duration) {
        let mut found = kept.found.lock().unwrap();
        let found = found.as_mut().unwrap();
        (found.took, found.asked) = (took, Instant::now() - ago);
    }

    #[tokio::test]
    async fn a_list_that_is_quick_is_asked_for_each_time() {
        let kept = Arc::new(Kept::default());
        assert_eq!(*kept.get(list(1)).await.unwrap().list, [1]);
        ages(&kept, Duration::from_millis(1), Duration::from_millis(10));
        assert_eq!(*kept.get(list(2)).await.unwrap().list, [2]);
    }

    #[tokio::test]
    async fn one_that_takes_long_is_shown_as_it_was_while_it_is_asked_for_again() {
        let kept = Arc::new(Kept::default());
        let first = kept.get(list(1)).await.unwrap();
        ages(&kept, LONG, LONG * SHARE / 2);
        assert_eq!(*kept.get(list(2)).await.unwrap().list, [1], "not yet");
        ages(&kept, LONG, LONG * SHARE);
        let (tell, told) = oneshot::channel::<()>();
        let ask = async move {
            told.await.unwrap();
            Ok::<_, ()>(vec![2])
        };
        let shown = kept.get(ask).await.unwrap();
        assert_eq!((&*shown.list, shown.as_of), (&vec![1], first.as_of));
        tokio::task::yield_now().await;
        let other = kept.get(list(3)).await.unwrap();
        assert_eq!(*other.list, [1], "it is asked for once");
        tell.send(()).unwrap();
        while *kept.known().unwrap().list != [2] {
            tokio::task::yield_now().await;
        }
        ages(&kept, LONG, OLD);
        assert_eq!(*kept.get(list(4)).await.unwrap().list, [4], "too old");
    }

    #[tokio::test]
    async fn who_comes_while_it_is_asked_for_gets_the_same_answer() {
        let kept = Arc::new(Kept::<u32>::default());
        let (tell, told) = oneshot::channel::<()>();
        let first = {
            let kept = kept.clone();
            tokio::spawn(async move {
                let ask = async move {
                    told.await.unwrap();
                    Ok::<_, ()>(vec![1])
                };
                kept.get(ask).await.unwrap()
            })
        };
        tokio::task::yield_now().await;
        assert!(kept.asking.try_lock().is_err(), "the first asks");
        let second = {
            let kept = kept.clone();
            tokio::spawn(async move { kept.get(async { Err::<Vec<u32>, _>(()) }).await })
        };
        tokio::task::yield_now().await;
        tell.send(()).unwrap();
        assert_eq!(*first.await.unwrap().list, [1]);
        assert_eq!(*second.await.unwrap().unwrap().list, [1]);
    }
}
