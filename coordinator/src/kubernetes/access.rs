//! Asks the API server what a Kubernetes user may do (SubjectAccessReview). Without an answer
//! nothing is allowed.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use muster_operator::{GROUP, JOBS, Server, Unanswered, cut};
use muster_rpc::{credentials::now_us, identity::KubernetesUser};
use ring::digest::{SHA256, digest};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};
use tonic::{Code, Status};

use super::{
    KubernetesError, Settings,
    answers::{Answers, Known, Lives},
};

/// Questions at a time, as with the reviews of tokens.
const AT_ONCE: usize = 64;
/// How long a caller may wait for its turn and its answer.
const WAIT: Duration = Duration::from_secs(10);
/// How long a yes counts: as long as a right may live on after it was taken away.
const YES: Duration = Duration::from_secs(10);
/// How long a no counts. Whoever was given a right does not wait for it.
const NO: Duration = Duration::from_secs(5);
/// Answers that are remembered. With some 150 bytes each they take 3 MB.
const ANSWERS_MAX: usize = 20_000;
/// A stream ends if nobody can say for this long whether its user still may have it. An API server
/// that is upgraded is away for less.
const UNKNOWN_MAX: Duration = Duration::from_secs(60);

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// What is done to which kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deed {
    pub(crate) verb: &'static str,
    pub(crate) resource: &'static str,
    /// Empty: the object itself.
    pub(crate) subresource: &'static str,
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource_name())
    }
}

impl Deed {
    fn resource_name(&self) -> String {
        match self.subresource {
            "" => self.resource.to_owned(),
            sub => format!("{}/{sub}", self.resource),
        }
    }
}

/// A deed and where it is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) deed: Deed,
    /// Empty: in all of them, or the objects are in none.
    pub(crate) namespace: String,
    /// Empty: any object.
    pub(crate) name: String,
}

#[derive(Debug)]
pub(crate) struct Access {
    server: Server,
    at_once: Semaphore,
    answers: Mutex<Answers<[u8; 32], (), String>>,
}

impl Access {
    /// `None`: users of Kubernetes are not served.
    pub(crate) fn of(settings: &Settings) -> Result<Option<Arc<Self>>, KubernetesError> {
        if !settings.tokens.as_ref().is_some_and(|tokens| tokens.users) {
            return Ok(None);
        }
        let lives = Lives {
            yes_us: YES.as_micros() as u64,
            no_us: NO.as_micros() as u64,
        };
        Ok(Some(Arc::new(Self {
            server: Server::of(&settings.configuration)?,
            at_once: Semaphore::new(AT_ONCE),
            answers: Mutex::new(Answers::new(lives, ANSWERS_MAX)),
        })))
    }

    /// Refuses what the cluster does not allow this user.
    pub(crate) async fn ask(
        &self,
        user: &KubernetesUser,
        question: &Question,
    ) -> Result<(), Status> {
        if user.expires_us <= now_us() {
            return Err(expired());
        }
        let spec = spec(user, question);
        let text = serde_json::to_vec(&spec).expect("objects have a JSON form");
        let hash = digest(&SHA256, &text);
        let key = hash.as_ref().try_into().expect("SHA-256 has 32 bytes");
        let why = match self.known(&key) {
            Known::Yes(()) => return Ok(()),
            Known::No(why) => why,
            Known::Once(()) | Known::Nothing => {
                let answer = timeout(WAIT, self.review(spec)).await;
                let answer = answer.unwrap_or(Err(Unanswered::Silent)).map_err(away)?;
                let now_us = now_us();
                let ends_us = now_us.saturating_add(YES.as_micros() as u64);
                let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
                answers.keep(key, answer.clone(), now_us, ends_us);
                match answer {
                    Ok(()) => return Ok(()),
                    Err(why) => why,
                }
            }
        };
        Err(Status::permission_denied(refusal(user, question, &why)))
    }

    fn known(&self, key: &[u8; 32]) -> Known<(), String> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.look(key, now_us())
    }

    /// The server's answer. A no has the reason that it gives.
    async fn review(
        &self,
        spec: SubjectAccessReviewSpec,
    ) -> Result<Result<(), String>, Unanswered> {
        let question = SubjectAccessReview {
            spec,
            ..SubjectAccessReview::default()
        };
        let permit = self.at_once.acquire().await;
        let answer = self.server.create(REVIEWS, &question).await;
        drop(permit.expect("the semaphore is never closed"));
        let answer: SubjectAccessReview = answer?;
        let status = answer.status.unwrap_or_default();
        if status.allowed && status.denied != Some(true) {
            return Ok(Ok(()));
        }
        let reason = status.reason.filter(|why| !why.is_empty());
        Ok(Err(cut(&reason
            .or(status.evaluation_error)
            .unwrap_or_default())))
    }

    /// Waits until the user may not do one of these any more, and says why.
    pub(crate) async fn end(&self, user: &KubernetesUser, questions: &[Question]) -> Status {
        let mut known = Instant::now();
        loop {
            let left = Duration::from_micros(user.expires_us.saturating_sub(now_us()));
            sleep(YES.min(left)).await;
            let mut away = None;
            for question in questions {
                match self.ask(user, question).await {
                    Ok(()) => {}
                    Err(why) if why.code() == Code::Unavailable => away = Some(why),
                    Err(why) if why.code() == Code::Unauthenticated => {
                        // The client comes back by itself, with a new token if it has one.
                        return Status::unavailable(why.message());
                    }
                    Err(why) => return why,
                }
            }
            match away {
                None => known = Instant::now(),
                Some(why) if known.elapsed() >= UNKNOWN_MAX => return why,
                Some(_) => {}
            }
        }
    }
}

fn expired() -> Status {
    Status::unauthenticated("the token has expired; get a new one")
}

fn away(why: Unanswered) -> Status {
    let hint = match why {
        Unanswered::Forbidden(_) => {
            "; its user needs the ClusterRole system:auth-delegator (verb create on subjectaccessreviews of authorization.k8s.io)"
        }
        _ => "",
    };
    Status::unavailable(format!(
        "the Kubernetes API server cannot be asked what you may do: {why}{hint}"
    ))
}

fn refusal(user: &KubernetesUser, question: &Question, why: &str) -> String {
    let place = match question.namespace.as_str() {
        "" if question.deed.resource == JOBS => " in all namespaces (name one with -n)".to_owned(),
        "" => String::new(),
        namespace => format!(" in namespace {namespace}"),
    };
    let why = match why {
        "" => String::new(),
        why => format!(" ({why})"),
    };
    let deed = question.deed;
    format!(
        "kubernetes/{} may not {deed}{place}{why}; whoever runs the Kubernetes cluster can allow it: apiGroups [{GROUP}], resources [{}], verbs \
         [{}]",
        user.name,
        deed.resource_name(),
        deed.verb
    )
}

fn spec(user: &KubernetesUser, question: &Question) -> SubjectAccessReviewSpec {
    let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let deed = question.deed;
    SubjectAccessReviewSpec {
        user: given(&user.name),
        uid: given(&user.uid),
        groups: Some(user.groups.clone()),
        extra: Some(user.extra.clone()),
        resource_attributes: Some(ResourceAttributes {
            group: given(GROUP),
            // Whichever version is asked about, the rules have none.
            version: given("*"),
            verb: given(deed.verb),
            resource: given(deed.resource),
            subresource: given(deed.subresource),
            namespace: given(&question.namespace),
            name: given(&question.name),
            ..ResourceAttributes::default()
        }),
        ..SubjectAccessReviewSpec::default()
    }
}
