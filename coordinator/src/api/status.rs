//! Reasons as gRPC statuses: the only table. The text is the reason's own and names the field, job
//! or node.

use std::collections::BTreeMap;

use muster_core::{
    fleet::{
        Answer, Refusal,
        fair_share::Share,
        plan::Plan,
        start_estimate::Start,
        view::{JobView, NodeView, QueueView},
    },
    id::JobName,
    spec::FieldError,
};
use muster_handle::handle::NoAnswer;
use muster_proto::convert::Malformed;
use tonic::{Code, Status};

pub(crate) fn refused(refusal: &Refusal) -> Status {
    let code = match refusal {
        Refusal::NoSuchJob(_) | Refusal::NoSuchNode(_) => Code::NotFound,
        Refusal::JobExists { .. } => Code::AlreadyExists,
        Refusal::Invalid { .. } => Code::InvalidArgument,
        Refusal::Precondition(_) => Code::FailedPrecondition,
        Refusal::TooMany { .. }
        | Refusal::NamespaceFull { .. }
        | Refusal::TooOften { .. }
        | Refusal::PlansTooOften { .. } => Code::ResourceExhausted,
    };
    Status::new(code, refusal.to_string())
}

pub(crate) fn malformed(error: Malformed) -> Status {
    Status::invalid_argument(error.to_string())
}

/// One field of a request that is wrong.
pub(crate) fn invalid(field: &str, message: impl std::fmt::Display) -> Status {
    Status::invalid_argument(format!("{field}: {message}"))
}

/// Everything that is wrong with a document, in one message.
pub(crate) fn fields(errors: &[FieldError]) -> Status {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Status::invalid_argument(texts.join("; "))
}

pub(crate) fn no_answer(error: NoAnswer) -> Status {
    match error {
        NoAnswer::Ended => Status::unavailable(error.to_string()),
        NoAnswer::Late => Status::deadline_exceeded(error.to_string()),
    }
}

/// The job in an answer. Any other answer than a job or a refusal is an internal error.
pub(crate) fn job(answer: Answer) -> Result<(Box<JobView>, bool), Status> {
    match answer {
        Answer::Job { job, existed } => Ok((job, existed)),
        Answer::Refused(refusal) => Err(refused(&refusal)),
        _ => Err(unexpected()),
    }
}

/// The same of a submission, which may have been only checked.
pub(crate) fn submitted(answer: Answer) -> Result<Submitted, Status> {
    match answer {
        Answer::Planned { job, plan } => Ok(Submitted {
            job,
            existed: false,
            plan: Some(plan),
        }),
        other => job(other).map(|(job, existed)| Submitted {
            job,
            existed,
            plan: None,
        }),
    }
}

/// What a submission is answered with.
pub(crate) struct Submitted {
    pub job: Box<JobView>,
    pub existed: bool,
    /// Of one that was only checked.
    pub plan: Option<Box<Plan>>,
}

pub(crate) fn node(answer: Answer) -> Result<Box<NodeView>, Status> {
    match answer {
        Answer::Node(node) => Ok(node),
        Answer::Refused(refusal) => Err(refused(&refusal)),
        _ => Err(unexpected()),
    }
}

pub(crate) fn queues(answer: Answer) -> Result<Vec<QueueView>, Status> {
    match answer {
        Answer::Queues(queues) => Ok(queues),
        Answer::Refused(refusal) => Err(refused(&refusal)),
        _ => Err(unexpected()),
    }
}

pub(crate) fn order(answer: Answer) -> Result<Vec<JobName>, Status> {
    match answer {
        Answer::Order(order) => Ok(order),
        Answer::Refused(refusal) => Err(refused(&refusal)),
        _ => Err(unexpected()),
    }
}

pub(crate) fn shares(answer: Answer) -> Result<Option<Vec<Share>>, Status> {
    match answer {
        Answer::Shares(shares) => Ok(shares),
        Answer::Refused(refusal) => Err(refused(&refusal)),
        _ => Err(unexpected()),
    }
}

pub(crate) fn starts(answer: Answer) -> Result<BTreeMap<JobName, Start>, Status> {
    match answer {
        Answer::Starts(starts) => Ok(starts),
        Answer::Refused(refusal) => Err(refused(&refusal)),
        _ => Err(unexpected()),
    }
}

pub(crate) fn done(answer: Answer) -> Result<(), Status> {
    match answer {
        Answer::Refused(refusal) => Err(refused(&refusal)),
        _ => Ok(()),
    }
}

fn unexpected() -> Status {
    Status::internal("the fleet answered with something else than was asked for")
}

#[cfg(test)]
mod tests {
    use muster_core::id::JobName;

    use super::*;

    #[test]
    fn every_refusal_has_its_code_and_keeps_its_words() {
        let name = JobName {
            namespace: "default".into(),
            name: "digits".into(),
        };
        let cases = [
            (
                Refusal::NoSuchJob(name.clone()),
                Code::NotFound,
                "job default/digits not found",
            ),
            (
                Refusal::NoSuchNode("node-9".into()),
                Code::NotFound,
                "node node-9 not found",
            ),
            (
                Refusal::JobExists {
                    name,
                    fields: "spec.args".into(),
                },
                Code::AlreadyExists,
                "job default/digits exists already with other content: spec.args differ; delete it first or use another name",
            ),
            (
                Refusal::Invalid {
                    field: "nodes".into(),
                    message: "is 9".into(),
                },
                Code::InvalidArgument,
                "nodes: is 9",
            ),
            (
                Refusal::Precondition("cancel it first".into()),
                Code::FailedPrecondition,
                "cancel it first",
            ),
            (
                Refusal::TooMany {
                    what: "jobs",
                    limit: 3,
                },
                Code::ResourceExhausted,
                "jobs: at most 3 are allowed; delete jobs that are over",
            ),
        ];
        for (refusal, code, text) in cases {
            let status = refused(&refusal);
            assert_eq!((status.code(), status.message()), (code, text));
        }
    }
}
