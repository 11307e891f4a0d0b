//! The store in a Kubernetes API server. Several coordinators may share it, and one of them decides at
//! a time (decision 0052).
//!
//! A [`Candidate`] waits for a Lease. When it has it, it becomes a [`KubernetesStore`], which reads and
//! writes the records for as long as it is sure of the Lease. While the API server is away nothing can
//! be committed. If the Lease runs out meanwhile, the coordinator ends, and workers go on without one.
//!
//! The engine blocks in its own thread while a commit is made. Another thread makes all requests, so
//! that it can renew the Lease meanwhile.
//!
//! | file | owns |
//! |---|---|
//! | `lease` | who may decide, and for how long a holder is sure |
//! | `object` | a record as an object |
//! | `records` | all records, and how a commit becomes writes |
//! | `client` | the requests: reads, and writes that name a version |
//! | `parts` | records that are larger than an object may be |
//! | `story` | events, many in one object |
//! | `past` | what is left of jobs that are over, many in one object |
//! | `reports` | nodes' reports, written between commits |
//! | `shared` | the trust folder, in a Secret |

mod client;
mod lease;
pub(crate) mod object;
mod parts;
mod past;
mod records;
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
use muster_operator::Server;
use tokio::sync::{mpsc, oneshot, watch};
use uuid::Uuid;

use self::{client::Client, lease::Sure, parts::Parts, records::Records, reports::Reports};
use super::{Lead, Leadership, Loaded, Store, StoreError};
use crate::kubernetes::KubernetesError;

pub use lease::LeaseTimes;
pub use object::yaml as definition_yaml;
pub(crate) use shared::Keeper;
pub use shared::{SharedError, SharedTrust};

/// The Lease's name.
const LEASE: &str = "muster-coordinator";

/// How many requests of the engine may wait. It makes one at a time.
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
    /// It must stay above `store`: fields are dropped in order. The drop of `store` waits for the
    /// thread, and the drop of this field ends the thread's wait for the Lease.
    leads: oneshot::Receiver<()>,
    may_lead: watch::Receiver<bool>,
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
    /// Starts to wait for the Lease in the namespace of the pod or of the kubeconfig. `process` names
    /// this process for people.
    pub fn start(
        configuration: &Config,
        process: &str,
        times: LeaseTimes,
    ) -> Result<Self, KubernetesError> {
        let (sure, reports) = (Sure::default(), Arc::new(Reports::default()));
        let (asks, asked) = mpsc::channel(ASKED);
        let (leading, leads) = oneshot::channel();
        let (may, may_lead) = watch::channel(false);
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
                    // A client works only while the runtime in which it was made runs, so it is
                    // made in this thread.
                    let server = match Server::of(&configuration) {
                        Ok(server) => server,
                        Err(e) => return drop(made.send(Err(e))),
                    };
                    drop(made.send(Ok(())));
                    let client = Client {
                        server: server.clone(),
                        namespace: configuration.default_namespace.clone(),
                        sure: sure.clone(),
                        parts: Arc::new(Parts::default()),
                    };
                    let elector = lease::Elector {
                        server,
                        namespace: configuration.default_namespace,
                        name: LEASE.into(),
                        identity,
                        times,
                        sure,
                        may,
                    };
                    serve(client, elector, &reports, leading, asked).await;
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
        Ok(Self {
            leads,
            may_lead,
            store,
        })
    }

    /// Whether it could take the Lease if that were free: it has the right to it.
    pub fn may_lead(&self) -> watch::Receiver<bool> {
        self.may_lead.clone()
    }

    /// Waits until this process may decide.
    pub async fn lead(self) -> KubernetesStore {
        self.leads
            .await
            .expect("the thread lives as long as its store");
        self.store
    }
}

/// What the thread does: it waits for the Lease, and then serves the engine until the store is dropped.
async fn serve(
    client: Client,
    elector: lease::Elector,
    reports: &Reports,
    mut leading: oneshot::Sender<()>,
    mut asked: mpsc::Receiver<Ask>,
) {
    tokio::select! {
        () = elector.take() => {}
        () = leading.closed() => return,
    }
    // If the process is about to end, nobody waits for this, and there will be nothing to receive.
    let _ = leading.send(());
    let mut records = Records::new(client.clone());
    let work = async {
        while let Some(ask) = asked.recv().await {
            answer(&mut records, ask).await;
        }
    };
    // If the Lease is lost, this thread goes on, and tells the engine so at each request.
    let hold = async {
        elector.renew_until_lost().await;
        std::future::pending().await
    };
    tokio::select! {
        () = work => {}
        () = hold => {}
        () = reports.work(&client) => {}
        () = client.delete_waste() => {}
    }
    reports.finish(&client).await;
    elector.release().await;
}

/// Does what the engine asks, and answers it. An engine that has ended does not wait for its answer.
async fn answer(records: &mut Records, ask: Ask) {
    match ask {
        Ask::Load(answer) => drop(answer.send(records.load().await)),
        Ask::NextTerm(at_least, answer) => drop(answer.send(records.next_term(at_least).await)),
        Ask::Commit(writes, answer) => drop(answer.send(records.commit(&writes).await)),
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
        // The queue has room, because the engine makes one request at a time.
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
            // If it panicked, the panic was printed.
            let _ = thread.join();
        }
    }
}

impl Leadership for KubernetesStore {
    fn lead(&self) -> Lead {
        let sure = self.sure.clone();
        Lead::new(move || sure.is_sure())
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
