//! Asks the API server about tokens: so many at a time, each token once, and again after a while. A
//! token that it has accepted is good until its end while the API server is away; nobody new is let
//! in then.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use k8s_openapi::{
    api::authentication::v1::{TokenReview, TokenReviewSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use muster_core::{fleet::worker_pod, id::JobName, spec::API_VERSION};
use muster_operator::{JOBS, Owner, Server, Unanswered};
use muster_rpc::{
    Bearer,
    bearer::Claims,
    credentials::now_us,
    identity::{Identity, Reviewed},
};
use serde::Deserialize;
use tokio::{
    sync::{Mutex as AsyncMutex, Semaphore},
    time::timeout,
};
use tonic::Status;
use tracing::{info, warn};

use super::{
    KubernetesError, Settings, Tokens,
    answers::{Answers, Known, Lives},
    verdict::{Proof, Refused, of_node},
};

/// Reviews at a time. A review takes an API server a few milliseconds, so ten thousand agents that
/// come back at once have theirs within seconds, and the server still has room for others.
const AT_ONCE: usize = 64;

/// How long a caller may wait for its turn and its answer. Then it comes again.
const WAIT: Duration = Duration::from_secs(10);

/// How long a no counts: long enough to spare the API server a caller that tries again and again,
/// short enough for a pod that was refused a moment too early.
const REFUSED: Duration = Duration::from_secs(10);

/// How many tokens are remembered with their answers: two for each of 20,000 nodes, around the time when they
/// are renewed. With some 500 bytes each they take 20 MB.
const TOKENS_MAX: usize = 40_000;

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

type Digest = [u8; 32];

/// Turns tokens into identities.
#[derive(Debug)]
pub(crate) struct Reviews {
    server: Server,
    tokens: Tokens,
    at_once: Semaphore,
    answers: Mutex<Answers<Digest, Arc<Reviewed>, Refused>>,
    /// The tokens that are asked about now. Callers with the same one wait for one answer.
    asking: Mutex<BTreeMap<Digest, Arc<AsyncMutex<()>>>>,
    /// The log was told that the API server does not answer.
    told: AtomicBool,
}

/// What is needed of a Pod object.
#[derive(Deserialize)]
struct Pod {
    metadata: PodMetadata,
    spec: PodSpec,
}

#[derive(Deserialize)]
struct PodMetadata {
    uid: String,
}

/// What tells a worker pod from others, and a job's object from others.
#[derive(Deserialize)]
struct Named {
    metadata: ObjectMeta,
}

#[derive(Deserialize)]
struct List {
    items: Vec<Named>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    #[serde(default)]
    node_name: String,
}

impl Reviews {
    /// `None`: no tokens are to be taken.
    pub(crate) fn of(settings: &Settings) -> Result<Option<Self>, KubernetesError> {
        let Some(tokens) = settings.tokens.clone() else {
            return Ok(None);
        };
        let lives = Lives {
            yes_us: tokens.again_after.as_micros() as u64,
            no_us: REFUSED.as_micros() as u64,
        };
        Ok(Some(Self {
            server: Server::of(&settings.configuration)?,
            tokens,
            at_once: Semaphore::new(AT_ONCE),
            answers: Mutex::new(Answers::new(lives, TOKENS_MAX)),
            asking: Mutex::default(),
            told: AtomicBool::new(false),
        }))
    }

    /// Who holds this token.
    pub(crate) async fn identity(&self, bearer: &Bearer) -> Result<Identity, Status> {
        self.look(bearer).await.map(Identity::Reviewed)
    }

    async fn look(&self, bearer: &Bearer) -> Result<Arc<Reviewed>, Status> {
        let claims = self
            .claims(bearer, now_us())
            .map_err(|refused| refused.status())?;
        let digest = bearer.digest();
        match self.known(&digest) {
            Known::Yes(reviewed) => return Ok(reviewed),
            Known::No(refused) => return Err(refused.status()),
            Known::Once(_) | Known::Nothing => {}
        }
        let waits = self.waits(digest);
        let answer = timeout(WAIT, async {
            let _turn = waits.turn.lock().await;
            self.asked(bearer, digest, &claims).await
        })
        .await;
        answer.unwrap_or_else(|_| {
            Err(Status::unavailable(
                "too many tokens wait for the Kubernetes API server; try again",
            ))
        })
    }

    /// Refuses what no API server needs to be asked about. Nothing in the token is believed.
    fn claims(&self, bearer: &Bearer, now_us: u64) -> Result<Claims, Refused> {
        let ours = || self.tokens.audience.clone();
        let claims = bearer
            .claims()
            .ok_or_else(|| Refused::Opaque { audience: ours() })?;
        if !claims.audiences.contains(&self.tokens.audience) {
            return Err(Refused::OtherAudience {
                ours: ours(),
                theirs: claims.audiences.join(", "),
            });
        }
        if claims.expires_us <= now_us {
            return Err(Refused::Expired);
        }
        Ok(claims)
    }

    /// Asks the API server. Other callers with the same question wait for this answer.
    async fn asked(
        &self,
        bearer: &Bearer,
        digest: Digest,
        claims: &Claims,
    ) -> Result<Arc<Reviewed>, Status> {
        // Another caller may have had the answer just now.
        let known = match self.known(&digest) {
            Known::Yes(reviewed) => return Ok(reviewed),
            Known::No(refused) => return Err(refused.status()),
            Known::Once(reviewed) => Some(reviewed),
            Known::Nothing => None,
        };
        let permit = self.at_once.acquire().await;
        let answer = self.review(bearer, claims).await;
        drop(permit.expect("the semaphore is never closed"));
        match answer {
            Ok(verdict) => {
                self.answered();
                let verdict = verdict.map(Arc::new);
                let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
                answers.keep(digest, verdict.clone(), now_us(), claims.expires_us);
                verdict.map_err(|refused| refused.status())
            }
            Err(why) => {
                let why = self.sentence(&why);
                if !self.told.swap(true, Ordering::Relaxed) {
                    warn!(
                        "tokens cannot be reviewed, those known already are good until their end: {why}"
                    );
                }
                known.ok_or_else(|| {
                    Status::unavailable(format!(
                        "the token cannot be checked, because the Kubernetes API server cannot be asked: {why}"
                    ))
                })
            }
        }
    }

    async fn review(
        &self,
        bearer: &Bearer,
        claims: &Claims,
    ) -> Result<Result<Reviewed, Refused>, Unanswered> {
        let question = TokenReview {
            spec: TokenReviewSpec {
                audiences: Some(vec![self.tokens.audience.clone()]),
                token: Some(bearer.secret().to_owned()),
            },
            ..TokenReview::default()
        };
        let answer: TokenReview = self.server.create(REVIEWS, &question).await?;
        let status = answer.status.unwrap_or_default();
        let proof = match self.tokens.check(status, claims.expires_us) {
            Ok(proof) => proof,
            Err(refused) => return Ok(Err(refused)),
        };
        match (proof, &self.tokens.agents) {
            (Proof::Whole(reviewed), _) => Ok(Ok(reviewed)),
            (
                Proof::Worker {
                    namespace,
                    name,
                    uid,
                    other,
                },
                _,
            ) => self.worker(&namespace, &name, &uid, *other).await,
            (Proof::Pod { name, uid }, Some(agents)) => {
                self.of_pod(&agents.namespace, name, &uid).await
            }
            (Proof::Pod { .. }, None) => Ok(Err(Refused::NoAgents)),
        }
    }

    /// Asks whether a pod is a worker pod: its owner is a job of its own namespace. Then its agent's node is
    /// the pod.
    async fn worker(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        other: Result<Proof, Refused>,
    ) -> Result<Result<Reviewed, Refused>, Unanswered> {
        let node = worker_pod::node_of(namespace, name);
        let is_name = muster_core::id::node_name_error(node.as_str()).is_none();
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let pod = match is_name {
            true => self.may_read(self.server.get::<Named>(&path).await)?,
            // It cannot be a part of a path.
            false => None,
        };
        let pod = pod.filter(|pod| pod.metadata.uid.as_deref() == Some(uid));
        let refused = match pod.and_then(|pod| Owner::of(&pod.metadata)) {
            None => Refused::NoAgents,
            Some(owner) if self.is_there(&owner).await? => return Ok(of_node(node.as_str())),
            Some(owner) => Refused::OtherJob {
                pod: name.to_owned(),
                namespace: namespace.to_owned(),
                job: owner.job.name,
            },
        };
        Ok(match (other, refused) {
            (Ok(Proof::Whole(reviewed)), _) => Ok(reviewed),
            (Err(other), Refused::NoAgents) => Err(other),
            (_, refused) => Err(refused),
        })
    }

    /// Whether the owner of a pod is there: in the pod's namespace, with this uid. A pod may name any
    /// uid.
    async fn is_there(&self, owner: &Owner) -> Result<bool, Unanswered> {
        let JobName { namespace, name } = &owner.job;
        if muster_core::id::node_name_error(name).is_some() {
            // It cannot be a part of a query. Objects have the same names as nodes.
            return Ok(false);
        }
        // The coordinator may list the objects. It needs no right to get one.
        let path = format!(
            "/apis/{API_VERSION}/namespaces/{namespace}/{JOBS}?fieldSelector=metadata.name%3D{name}"
        );
        let all = self.may_read(self.server.get::<List>(&path).await)?;
        let is_owner = |object: &Named| {
            let metadata = &object.metadata;
            metadata.namespace.as_deref() == Some(namespace)
                && metadata.name.as_deref() == Some(name)
                && metadata.uid.as_deref() == Some(owner.uid.as_str())
        };
        Ok(all.is_some_and(|all| all.items.iter().any(is_owner)))
    }

    /// `None`: it is not there, or the coordinator may not read it, and then it makes no pods.
    fn may_read<T>(&self, answer: Result<T, Unanswered>) -> Result<Option<T>, Unanswered> {
        match answer {
            Ok(read) => Ok(Some(read)),
            Err(why) if why.is_missing() || matches!(why, Unanswered::Forbidden(_)) => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// Asks for the pod itself, as servers before 1.32 say nothing of its node.
    async fn of_pod(
        &self,
        namespace: &str,
        name: String,
        uid: &str,
    ) -> Result<Result<Reviewed, Refused>, Unanswered> {
        if let Some(why) = muster_core::id::node_name_error(&name) {
            // It becomes a part of a path. Pods have the same names as nodes.
            return Ok(Err(Refused::NodeName(name, why)));
        }
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        match self.server.get::<Pod>(&path).await {
            Err(why) if why.is_missing() => Ok(Err(Refused::OtherPod(name))),
            Err(why) => Err(why),
            Ok(pod) if pod.metadata.uid != uid => Ok(Err(Refused::OtherPod(name))),
            Ok(pod) if pod.spec.node_name.is_empty() => Ok(Err(Refused::Unscheduled(name))),
            Ok(pod) => Ok(of_node(&pod.spec.node_name)),
        }
    }

    fn known(&self, digest: &Digest) -> Known<Arc<Reviewed>, Refused> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.look(digest, now_us())
    }

    fn waits(&self, digest: Digest) -> Waits<'_> {
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        Waits {
            turn: asking.entry(digest).or_default().clone(),
            reviews: self,
            digest,
        }
    }

    fn answered(&self) {
        if self.told.swap(false, Ordering::Relaxed) {
            info!("tokens are reviewed again");
        }
    }

    /// For a person: what is wrong, and where to mend it.
    fn sentence(&self, why: &Unanswered) -> String {
        match why {
            Unanswered::Forbidden(_) => format!(
                "{why}; its user needs the ClusterRole system:auth-delegator (verb create on tokenreviews of authentication.k8s.io), and for API \
                 servers before 1.32 the verb get on pods{}",
                self.tokens
                    .agents
                    .as_ref()
                    .map(|agents| format!(" in {}", agents.namespace))
                    .unwrap_or_default()
            ),
            _ => why.to_string(),
        }
    }
}

/// A caller that waits for the answer about its token. It may leave at any time.
struct Waits<'a> {
    reviews: &'a Reviews,
    digest: Digest,
    turn: Arc<AsyncMutex<()>>,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let asking = &self.reviews.asking;
        let mut asking = asking.lock().unwrap_or_else(PoisonError::into_inner);
        // The map's own, and this one: nobody else waits.
        if Arc::strong_count(&self.turn) <= 2 {
            asking.remove(&self.digest);
        }
    }
}
