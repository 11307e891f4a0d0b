//! The store in a Kubernetes API server, for several coordinators of which one decides at a time
//! (decision 0052).
//!
//! A [`Candidate`] waits for a Lease. Whoever has it reads all records, and is a store for as long as
//! it is sure of the Lease. While the API server is away nothing can be committed; a coordinator whose
//! Lease runs out meanwhile ends, and workers go on without one.
//!
//! The engine waits for its commits on a thread of its own. All requests are made by another thread,
//! which also renews the Lease while the engine waits.
//!
//! | file | owns |
//! |---|---|
//! | `lease` | who may decide, and for how long a holder is sure |
//! | `object` | a record as an object |
//! | `books` | all records: read, and written one after the other |
//! | `story` | events, many in one object |
//! | `reports` | nodes' reports, written between commits |
//! | `shared` | the trust folder, in a Secret |

mod books;
mod lease;
pub(crate) mod object;
mod reports;
mod shared;
mod story;

use std::{
    fmt,
    sync::{Arc, mpsc as blocking},
    thread::{self, JoinHandle},
};

use kube::Config;
use muster_core::{
    fleet::commit::Write,
    id::{NodeName, Term},
    node_report::NodeReport,
};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use self::{
    books::{Books, Place},
    lease::Sure,
    reports::Reports,
};
use super::{Leadership, Loaded, Store, StoreError};
use crate::kubernetes::{KubernetesError, Server};

pub use lease::LeaseTimes;
pub use object::yaml as definition_yaml;
pub use shared::{SharedError, SharedTrust};

/// The Lease's name.
const LEASE: &str = "muster-coordinator";

/// Requests of the engine, which makes one at a time.
const ASKED: usize = 4;

type Answer<T> = blocking::Sender<Result<T, StoreError>>;

enum Ask {
    Load(Answer<Loaded>),
    NextTerm(Term, Answer<Term>),
    Commit(Vec<Write>, Answer<()>),
}

/// A coordinator that wants to decide.
#[derive(Debug)]
pub struct Candidate {
    /// Dropped first, so that the thread stops waiting before its store waits for its end.
    leads: oneshot::Receiver<()>,
    store: KubernetesStore,
}

/// The records of one namespace. When it is dropped, the Lease is given back.
pub struct KubernetesStore {
    asks: Option<mpsc::Sender<Ask>>,
    sure: Sure,
    reports: Arc<Reports>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for KubernetesStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubernetesStore").finish_non_exhaustive()
    }
}

impl Candidate {
    /// In the namespace of the pod or of the kubeconfig. `process` names this process for people.
    pub fn start(
        configuration: &Config,
        process: &str,
        times: LeaseTimes,
    ) -> Result<Self, KubernetesError> {
        let (sure, reports) = (Sure::default(), Arc::new(Reports::default()));
        let (asks, asked) = mpsc::channel(ASKED);
        let (leading, leads) = oneshot::channel();
        let (made, is_made) = blocking::channel();
        let thread = thread::Builder::new().name("store".into()).spawn({
            let (configuration, reports, sure) =
                (configuration.clone(), reports.clone(), sure.clone());
            let identity = format!("{process}_{}", Uuid::now_v7());
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime of one thread");
                runtime.block_on(async {
                    // A client belongs to the runtime in which it was made, and the engine's thread
                    // must not hold it up.
                    let server = match Server::of(&configuration) {
                        Ok(server) => server,
                        Err(e) => return drop(made.send(Err(e))),
                    };
                    drop(made.send(Ok(())));
                    let place = Place {
                        server: server.clone(),
                        namespace: configuration.default_namespace.clone(),
                        sure: sure.clone(),
                    };
                    let candidate = lease::Candidate {
                        server,
                        namespace: configuration.default_namespace,
                        name: LEASE.into(),
                        identity,
                        times,
                        sure,
                    };
                    serve(place, candidate, &reports, leading, asked).await;
                });
            }
        });
        let thread = thread.map_err(KubernetesError::Thread)?;
        is_made
            .recv()
            .expect("the thread says whether it has a client")?;
        let store = KubernetesStore {
            asks: Some(asks),
            sure,
            reports,
            thread: Some(thread),
        };
        Ok(Self { leads, store })
    }

    /// Waits until this process may decide.
    pub async fn lead(self) -> KubernetesStore {
        self.leads
            .await
            .expect("the thread lives as long as its store");
        self.store
    }
}

/// The thread: waits for the Lease, then does what the engine asks, until nobody can ask any more.
async fn serve(
    place: Place,
    candidate: lease::Candidate,
    reports: &Reports,
    mut leading: oneshot::Sender<()>,
    mut asked: mpsc::Receiver<Ask>,
) {
    tokio::select! {
        () = candidate.take() => {}
        () = leading.closed() => return,
    }
    // Nobody waits any more if the process is about to end. Then the next receive says so.
    let _ = leading.send(());
    let mut books = Books::new(place.clone());
    let work = async {
        while let Some(ask) = asked.recv().await {
            answer(&mut books, ask).await;
        }
    };
    // If the Lease is lost, every request of the engine is answered with that.
    let hold = async {
        candidate.hold().await;
        std::future::pending().await
    };
    tokio::select! {
        () = work => {}
        () = hold => {}
        () = reports.work(&place) => {}
    }
    reports.finish(&place).await;
    candidate.release().await;
}

/// An engine that has ended does not wait for its answer.
async fn answer(books: &mut Books, ask: Ask) {
    match ask {
        Ask::Load(answer) => drop(answer.send(books.load().await)),
        Ask::NextTerm(at_least, answer) => drop(answer.send(books.next_term(at_least).await)),
        Ask::Commit(writes, answer) => drop(answer.send(books.commit(&writes).await)),
    }
}

impl KubernetesStore {
    fn ask<T>(&self, ask: impl FnOnce(Answer<T>) -> Ask) -> Result<T, StoreError> {
        let (answer, answered) = blocking::channel();
        let mut ask = ask(answer);
        let asks = self
            .asks
            .as_ref()
            .expect("it is there until the store is dropped");
        // There is room: one request is made at a time.
        while let Err(mpsc::error::TrySendError::Full(again)) = asks.try_send(ask) {
            ask = again;
            thread::yield_now();
        }
        // The thread ends before the store only by a panic.
        answered.recv().unwrap_or(Err(StoreError::Deposed))
    }
}

impl Drop for KubernetesStore {
    fn drop(&mut self) {
        self.asks = None;
        if let Some(thread) = self.thread.take() {
            // A panic there was told already.
            let _ = thread.join();
        }
    }
}

impl Leadership for KubernetesStore {
    fn still_holds(&self) -> bool {
        self.sure.is_sure()
    }
}

impl Store for KubernetesStore {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        self.ask(Ask::Load)
    }

    fn next_term(&mut self, at_least: Term) -> Result<Term, StoreError> {
        self.ask(|answer| Ask::NextTerm(at_least, answer))
    }

    fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        if writes.is_empty() {
            return Ok(());
        }
        self.reports.forget_deleted(writes);
        self.ask(|answer| Ask::Commit(writes.to_vec(), answer))
    }

    fn keep_reports(&mut self, reports: &[(NodeName, Arc<NodeReport>)]) -> Result<(), StoreError> {
        self.reports.add(reports);
        Ok(())
    }
}
