//! `/metrics`: what a Prometheus scrapes.
//!
//! Facts are read from the board at the scrape, so they are those of `muster get`, and a series ends with its
//! job. What happens is counted from the start of the process. A page is made on a thread of its own, after
//! the board was let go: no scrape holds up the engine or a session.
//!
//! | file | owns |
//! |---|---|
//! | `catalogue` | all metrics: names, labels, help |
//! | `text` | the format |
//! | `jobs`, `nodes`, `queues` | what the board says |
//! | `notifications` | what waits to be sent to people |
//! | `live` | what is counted as it happens |

use std::sync::{Arc, Mutex, PoisonError};

use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use catalogue::Family;
use jobs::Shown;
use live::Live;
use muster_core::{fleet::queues::Queues, id::Term};
use muster_handle::handle::Handle;
use muster_rpc::http_port::{HttpPort, HttpPortError};
use muster_runtime::{
    tasks::{Ordinary, Tasks},
    version::version,
};
use text::Page;
use tokio::sync::broadcast::Receiver;
use tonic::service::Routes;
use tracing::{error, info};

use crate::{notify::Desk, turn_stats::TurnStats};

pub mod catalogue;
mod jobs;
mod live;
mod nodes;
mod notifications;
mod queues;
mod text;

/// The name of the flag, for errors.
const FLAG: &str = "--metrics-listen";

/// What the root says to a person who looks for the page.
const ROOT: &str = "muster-coordinator: see /metrics\n";

/// Opens the port. Must run in a tokio runtime.
pub(crate) fn open(address: std::net::SocketAddr) -> Result<HttpPort, HttpPortError> {
    HttpPort::open(FLAG, address)
}

/// Counts what happens, and serves the page on this port until the shutdown.
pub(crate) fn serve(
    tasks: &mut Tasks,
    port: HttpPort,
    handle: Handle,
    desk: Option<Arc<Desk>>,
    queues: Queues,
    term: Term,
    turns: Receiver<TurnStats>,
) {
    let live = Live::default();
    tasks.spawn(
        Ordinary,
        "metrics of turns",
        live.clone().count_turns(turns),
    );
    let incidents = live.clone().count_incidents(handle.jobs());
    tasks.spawn(Ordinary, "metrics of incidents", incidents);
    let metrics = Arc::new(Metrics {
        handle,
        desk,
        queues,
        term,
        live,
        shown: Mutex::default(),
    });
    let answer = move || {
        let metrics = metrics.clone();
        async move { metrics.answer().await }
    };
    let router = Router::new()
        .route("/", get(|| async { ROOT }))
        .route("/metrics", get(answer))
        .fallback(|| async { (StatusCode::NOT_FOUND, ROOT) });
    let (address, shutdown) = (port.address(), tasks.shutdown());
    let ended = async move { shutdown.cancelled().await };
    let (accepting, server) = port.serve(Routes::from(router), ended);
    info!(%address, "metrics are served without TLS, to everybody who reaches this address");
    tasks.spawn(Ordinary, "accept scrapes", accepting);
    tasks.spawn(Ordinary, "metrics", async move {
        if let Err(e) = server.await {
            error!("serve metrics: {e}");
        }
    });
}

struct Metrics {
    handle: Handle,
    desk: Option<Arc<Desk>>,
    queues: Queues,
    term: Term,
    live: Live,
    shown: Mutex<Shown>,
}

impl Metrics {
    async fn answer(self: Arc<Self>) -> Response {
        match tokio::task::spawn_blocking(move || self.page()).await {
            Ok(text) => ([(CONTENT_TYPE, text::CONTENT_TYPE)], text).into_response(),
            Err(e) => {
                error!("make the page of metrics: {e}");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }

    /// One page at a time is made.
    fn page(&self) -> String {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        // The engine waits while somebody looks at the board, so look, and let go.
        let values = self.handle.jobs();
        let jobs: Vec<_> = {
            let board = values.borrow();
            board.after(None).map(|(_, job)| job.clone()).collect()
        };
        let values = self.handle.nodes();
        let nodes: Vec<_> = {
            let board = values.borrow();
            board.after(None).map(|(_, node)| node.clone()).collect()
        };
        let mut page = Page::new();
        page.put(Family::BuildInfo, &[version()], 1_u64);
        page.put(Family::Term, &[], self.term.0);
        jobs::put(&mut page, &jobs, &mut shown, self.handle.now());
        queues::put(&mut page, &self.queues, &jobs);
        nodes::put(&mut page, &nodes, &jobs::held(&jobs));
        self.live.put(&mut page);
        if let Some(desk) = &self.desk {
            let outbox = self.handle.outbox().borrow().clone();
            notifications::put(&mut page, desk, &outbox, self.handle.now());
        }
        page.text()
    }
}
