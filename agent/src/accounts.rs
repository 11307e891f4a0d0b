//! Asks this machine who an owner is. `core::node::account` says what to ask and judges the answer.
//!
//! The agent asks by programs, `getent` and `id`: they know every name service of the machine, such as LDAP,
//! and one that hangs can be ended.

use std::{fs, process::Stdio, time::Duration};

use muster_core::{
    node::account::{self, Account, Sought, UserMap},
    run::{Assignment, DueTo, Refusal},
};
use tokio::process::Command;

/// How long the name services of the machine may take. Over a network they take milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);
/// Where the machine says which accounts are the system's (login.defs(5)).
const LOGIN_DEFS: &str = "/etc/login.defs";

/// The account as which the job runs here.
pub(crate) async fn find(
    assignment: &Assignment,
    map: Option<&UserMap>,
) -> Result<Account, Refusal> {
    let sought = account::sought(assignment, map)?;
    let (passwd, groups) = match &sought {
        Sought::Known(_) => Default::default(),
        Sought::OfMachine { key, .. } => {
            let passwd = ask("getent", &["passwd", key]).await?;
            // By its number an account may have another name than the groups know.
            let name = passwd.split(':').next().unwrap_or_default();
            let groups = match name {
                "" => String::new(),
                name => ask("id", &["-G", "--", name]).await?,
            };
            (passwd, groups)
        }
    };
    let Some(owner) = &assignment.owner else {
        unreachable!("without an owner nothing is sought")
    };
    let uid_min = account::uid_min(&fs::read_to_string(LOGIN_DEFS).unwrap_or_default());
    account::of_machine(owner, &sought, &passwd, &groups, uid_min)
}

/// What a program prints. Nothing, if there is no such user: that is no error.
async fn ask(program: &str, args: &[&str]) -> Result<String, Refusal> {
    // That names cannot be looked up is the node's doing, unlike a name that it does not know.
    let trouble = |why: &str| {
        let args = args.join(" ");
        DueTo::Node.because(format!(
            "the owner of the job cannot be looked up: {program} {args}: {why}"
        ))
    };
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    match tokio::time::timeout(PATIENCE, output).await {
        // getent(1): 2 is a key that was not found. Of others the answer is not known.
        Ok(Ok(output)) if output.status.success() || output.status.code() == Some(2) => {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(Ok(output)) => Err(trouble(&output.status.to_string())),
        Ok(Err(e)) => Err(trouble(&e.to_string())),
        Err(_) => Err(trouble(&format!(
            "no answer within {} s",
            PATIENCE.as_secs()
        ))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "this is a test")]

    use super::*;

    #[tokio::test]
    async fn a_machine_knows_its_users_and_no_others() {
        let root = ask("getent", &["passwd", "0"]).await.unwrap();
        assert!(root.starts_with("root:"), "{root}");
        assert_eq!(
            ask("id", &["-G", "--", "root"])
                .await
                .unwrap()
                .split_whitespace()
                .next(),
            Some("0")
        );
        assert_eq!(
            ask("getent", &["passwd", "no-such-user-of-ours"])
                .await
                .unwrap(),
            ""
        );
        let refusal = ask("no-such-program-of-ours", &[]).await.unwrap_err();
        assert_eq!(refusal.due_to, DueTo::Node);
    }
}
