//! Questions that only a certain user can answer, asked by root.
//!
//! An agent that starts jobs as their owners is root, and root is nobody to a file server that squashes
//! it, while it reads and kills everything on its own machine. So whatever a job names is looked for by a
//! process that is its owner, and what its records name is killed by one.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use serde::de::DeserializeOwned;

use crate::{
    open_files,
    place::{Become, Program, read_to_end},
    pod::{Answer, LINE_MAX, Question},
};

/// What `muster-runner` is called with to answer one question about files or processes of its user.
pub const ANSWER: &str = "answer";
/// How long an answer may take: a file server may be slow, and no answer is better than none for ever.
const PATIENCE: Duration = Duration::from_secs(20);

/// Asks a process that is this user, and waits for its answer. The error is for the user.
pub fn ask_as<T: DeserializeOwned>(
    runner: &Path,
    user: &Become,
    question: &Question,
) -> Result<T, String> {
    let mut child = Command::new(runner)
        .args(user.args())
        .arg(ANSWER)
        .env_clear()
        .envs(open_files::told())
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| Program::not_asked(runner, &e))?;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        unreachable!("both streams are pipes")
    };
    let mut line = serde_json::to_vec(question).map_err(|e| e.to_string())?;
    line.push(b'\n');
    let mut heard = Vec::new();
    // One that has ended at once reads nothing, and what it says tells so.
    let _ = input.write_all(&line);
    drop(input);
    let read = read_to_end(output, &mut heard, LINE_MAX, PATIENCE);
    if !matches!(read, Ok(true)) {
        let _ = child.kill();
    }
    // One that waits for a file server ends when the server answers, and somebody must reap it then.
    let reaped = std::thread::Builder::new()
        .name("reap".into())
        .spawn(move || drop(child.wait()));
    drop(reaped);
    let lost = |why: &str| format!("{} as user {}: {why}", runner.display(), user.numbers);
    match read {
        Ok(true) => {}
        Ok(false) => return Err(lost(&format!("no answer within {} s", PATIENCE.as_secs()))),
        Err(e) => return Err(lost(&e.to_string())),
    }
    let answer: Answer = serde_json::from_slice(&heard).map_err(|_| {
        lost("it cannot be executed by that user, or was ended: every user must be able to enter the folders on its path")
    })?;
    match answer.error {
        Some(error) => Err(error),
        None => {
            serde_json::from_value(answer.ok.unwrap_or_default()).map_err(|e| lost(&e.to_string()))
        }
    }
}
