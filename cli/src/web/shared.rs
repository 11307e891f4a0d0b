//! One answer for all who ask for the same page at the same time. A page that is seen looks again every two seconds, and two hundred
//! readers of a large fleet would keep the coordinator busy with the same questions. Everybody who is let in is the same person to the
//! coordinator, so all may see the same answer.
//!
//! A page is made by one reader at a time; who comes meanwhile waits for it. No reader gets a page that was begun longer than
//! `FRESH` before they came, so a coordinator that is gone is missed within a second. An answer that is no page is not shared.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes, to_bytes},
    http::{StatusCode, response::Parts},
    response::{IntoResponse, Response},
};

/// Half of the time after which a page looks again, so that each look brings something newer.
const FRESH: Duration = Duration::from_secs(1);
/// Addresses whose answers are shared. More are asked for one by one. A page has some 100 KiB, so this is 6 MiB.
const ADDRESSES_MAX: usize = 64;

/// Pages by address.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    by_address: Mutex<HashMap<String, Arc<Slot>>>,
}

type Slot = tokio::sync::Mutex<Option<Page>>;

#[derive(Clone, Debug)]
struct Page {
    begun: Instant,
    parts: Parts,
    body: Bytes,
}

impl Pages {
    /// The page at this address, which was made for another reader just now, or is made.
    pub(crate) async fn get(
        &self,
        address: &str,
        make: impl Future<Output = Response>,
    ) -> Response {
        let came = Instant::now();
        let Some(slot) = self.slot(address, came) else {
            return make.await;
        };
        let mut known = slot.lock().await;
        if let Some(page) = known.as_ref().filter(|page| page.is_fresh(came)) {
            return page.clone().into_response();
        }
        let begun = Instant::now();
        let (parts, body) = make.await.into_parts();
        let is_page = parts.status == StatusCode::OK;
        let Ok(body) = to_bytes(body, usize::MAX).await else {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        };
        let page = Page { begun, parts, body };
        *known = is_page.then(|| page.clone());
        page.into_response()
    }

    /// `None`: there are too many.
    fn slot(&self, address: &str, now: Instant) -> Option<Arc<Slot>> {
        let mut all = self
            .by_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = all.get(address) {
            return Some(slot.clone());
        }
        // Whoever holds the lock of a slot makes its page.
        let is_needed = |slot: &Arc<Slot>| {
            slot.try_lock()
                .map_or(true, |page| page.as_ref().is_some_and(|p| p.is_fresh(now)))
        };
        all.retain(|_, slot| is_needed(slot));
        if all.len() >= ADDRESSES_MAX {
            return None;
        }
        Some(all.entry(address.to_owned()).or_default().clone())
    }
}

impl Page {
    fn is_fresh(&self, came: Instant) -> bool {
        came.saturating_duration_since(self.begun) < FRESH
    }
}

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        Response::from_parts(self.parts, Body::from(self.body))
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    async fn text(response: Response) -> String {
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    async fn says(word: &'static str) -> Response {
        word.into_response()
    }

    /// As if the page had been begun so long ago.
    async fn ages(pages: &Pages, address: &str, by: Duration) {
        let slot = pages.by_address.lock().unwrap()[address].clone();
        slot.lock().await.as_mut().unwrap().begun -= by;
    }

    #[tokio::test]
    async fn a_page_is_shared_for_a_moment_with_who_asks_for_the_same() {
        let pages = Pages::default();
        assert_eq!(text(pages.get("/", says("one")).await).await, "one");
        assert_eq!(text(pages.get("/", says("two")).await).await, "one");
        assert_eq!(text(pages.get("/?q=a", says("two")).await).await, "two");
        ages(&pages, "/", FRESH).await;
        assert_eq!(text(pages.get("/", says("three")).await).await, "three");
    }

    #[tokio::test]
    async fn who_comes_while_it_is_made_waits_for_it() {
        let pages = Arc::new(Pages::default());
        let (tell, told) = oneshot::channel::<()>();
        let first = {
            let pages = pages.clone();
            tokio::spawn(async move {
                let make = async {
                    told.await.unwrap();
                    says("one").await
                };
                text(pages.get("/", make).await).await
            })
        };
        tokio::task::yield_now().await;
        let second = {
            let pages = pages.clone();
            tokio::spawn(async move { text(pages.get("/", says("two")).await).await })
        };
        tokio::task::yield_now().await;
        tell.send(()).unwrap();
        assert_eq!(first.await.unwrap(), "one");
        assert_eq!(second.await.unwrap(), "one");
    }

    #[tokio::test]
    async fn a_reader_who_goes_away_keeps_nobody_waiting() {
        let pages = Pages::default();
        let never = pages.get("/", std::future::pending());
        assert!(
            tokio::time::timeout(Duration::from_millis(1), never)
                .await
                .is_err()
        );
        assert_eq!(text(pages.get("/", says("two")).await).await, "two");
    }

    #[tokio::test]
    async fn what_is_no_page_is_not_shared() {
        let pages = Pages::default();
        let gone = async { (StatusCode::BAD_GATEWAY, "no answer").into_response() };
        let answer = pages.get("/", gone).await;
        assert_eq!(answer.status(), StatusCode::BAD_GATEWAY);
        assert_eq!(text(pages.get("/", says("two")).await).await, "two");
    }

    #[tokio::test]
    async fn pages_are_forgotten_when_there_are_many() {
        let pages = Pages::default();
        for number in 0..2 * ADDRESSES_MAX {
            let answer = pages.get(&number.to_string(), says("one")).await;
            assert_eq!(text(answer).await, "one");
        }
        let held = || pages.by_address.lock().unwrap().len();
        assert_eq!(held(), ADDRESSES_MAX);
        for number in 0..ADDRESSES_MAX {
            ages(&pages, &number.to_string(), FRESH).await;
        }
        pages.get("another", says("two")).await;
        assert_eq!(held(), 1);
    }
}
