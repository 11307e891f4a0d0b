//! Which job, and which member of it, a name means: `digits`, or `digits-worker-1`, as the pod of that
//! member is called elsewhere.

use muster_proto::v1::GetJobRequest;
use tonic::Code;

use super::Logs;
use crate::{
    connect::{Client, job_ref},
    context::Context,
    fail::Failure,
};

/// The jobs and members that `name` may mean if no job has that name: `a-b-worker-1` is `worker-1` of
/// `a-b`, or a member of which the number is left out, as `a-launcher`.
fn meanings(name: &str) -> Vec<(&str, &str)> {
    let Some((before, last)) = name.rsplit_once('-') else {
        return Vec::new();
    };
    let numbered = last.bytes().all(|byte| byte.is_ascii_digit());
    let with_number = before.rfind('-').filter(|_| numbered);
    let split = |at: usize| (&name[..at], &name[at + 1..]);
    with_number
        .into_iter()
        .map(split)
        .chain([(before, last)])
        .collect()
}

/// The job and the member that the arguments ask for.
pub(super) async fn find(
    cx: &Context,
    client: &Client,
    args: &Logs,
) -> Result<(String, Option<String>), Failure> {
    let named = (args.job.clone(), args.member.clone());
    let meanings = meanings(&args.job);
    if args.member.is_some() || args.rank.is_some() || meanings.is_empty() {
        return Ok(named);
    }
    if knows(cx, client, &args.job).await? {
        return Ok(named);
    }
    for (job, member) in meanings {
        if knows(cx, client, job).await? {
            return Ok((job.to_owned(), Some(member.to_owned())));
        }
    }
    // The error names what the user wrote.
    Ok(named)
}

async fn knows(cx: &Context, client: &Client, job: &str) -> Result<bool, Failure> {
    let request = client.ask(GetJobRequest {
        r#ref: Some(job_ref(cx.namespace(), job)),
    });
    match client.jobs().get(request).await {
        Ok(_) => Ok(true),
        Err(status) if matches!(status.code(), Code::NotFound | Code::InvalidArgument) => Ok(false),
        Err(status) => Err(client.failure(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_mean_a_member() {
        assert_eq!(
            meanings("a-b-worker-1"),
            [("a-b", "worker-1"), ("a-b-worker", "1")]
        );
        assert_eq!(meanings("a-launcher"), [("a", "launcher")]);
        assert_eq!(meanings("a-1"), [("a", "1")]);
        assert_eq!(meanings("digits"), []);
    }
}
