//! Gives an allocation back so that Slurm starts its batch job again, without the nodes that failed. Asks and tells `scontrol`; which nodes
//! failed is known elsewhere.

use std::process::{Command, Stdio};

use crate::{context::Context, fail::Failure};

/// What Slurm says of a job, as far as a requeue is concerned.
#[derive(Debug, PartialEq, Eq)]
struct About {
    state: String,
    is_batch: bool,
    may_requeue: bool,
    /// The nodes that it may not have already. Empty: none.
    excluded: String,
}

impl About {
    /// Reads a line of `scontrol --oneliner show job`.
    fn read(line: &str) -> About {
        let value = |name: &str| {
            let mut words = line.split_whitespace();
            let found = words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            found.filter(|value| *value != "(null)").unwrap_or_default()
        };
        About {
            state: value("JobState").to_owned(),
            is_batch: value("BatchFlag") != "0",
            may_requeue: value("Requeue") != "0",
            excluded: value("ExcNodeList").to_owned(),
        }
    }

    fn of(job: &str) -> Result<About, Failure> {
        Ok(About::read(&scontrol(&["--oneliner", "show", "job", job])?))
    }
}

/// Refuses what Slurm would refuse at the end, when the work is done.
pub(super) fn check(cx: &Context, job: &str) -> Result<(), Failure> {
    // Slurm takes the number of an array's last task for the whole array.
    if std::env::var_os("SLURM_ARRAY_JOB_ID").is_some() {
        return Err(Failure::usage(
            "--requeue: not in a job array, of which Slurm might start every task again; submit its tasks as jobs",
        ));
    }
    let about = match About::of(job) {
        Ok(about) => about,
        Err(failure) => {
            cx.warn(format!(
                "whether this job may be requeued is not known: {failure}"
            ));
            return Ok(());
        }
    };
    if !about.is_batch {
        return Err(Failure::usage(
            "--requeue: Slurm starts only batch jobs again; give this command in a script to sbatch",
        ));
    }
    if !about.may_requeue {
        return Err(Failure::usage(
            "--requeue: Slurm may not start this job again; add the line `#SBATCH --requeue`",
        ));
    }
    Ok(())
}

/// Requeues the job of this allocation, without these nodes. What cannot be done is told with what to type.
/// Slurm then tells this process to end, and kills it after KillWait.
pub(super) fn requeue(cx: &Context, job: &str, failed: Option<&str>) -> Result<(), Failure> {
    let by_hand = match failed {
        Some(failed) => format!("to start it again: sbatch --exclude={failed} SCRIPT"),
        None => "to start it again: sbatch SCRIPT".to_owned(),
    };
    let about = About::of(job);
    if let Ok(about) = &about
        && about.state != "RUNNING"
    {
        return Err(Failure::request(format!(
            "not requeued: job {job} is {}, so somebody ends it; {by_hand}",
            about.state
        )));
    }
    scontrol(&["requeue", job])
        .map_err(|failure| Failure::request(format!("not requeued: {failure}; {by_hand}")))?;
    cx.say(format!("job {job} is requeued"));
    let Some(failed) = failed else { return Ok(()) };
    let Ok(before) = about.map(|about| about.excluded) else {
        cx.warn(format!(
            "it may get {failed} again: which nodes it already excludes is not known; while it waits, type: \
             scontrol update JobId={job} ExcNodeList={failed}, with those added"
        ));
        return Ok(());
    };
    let nodes = match before.as_str() {
        "" => failed.to_owned(),
        before => format!("{before},{failed}"),
    };
    // Slurm takes this from a job that waits. This one does, and cannot start before this process has ended.
    let change = [format!("JobId={job}"), format!("ExcNodeList={nodes}")];
    match scontrol(&["update", &change[0], &change[1]]) {
        Ok(_) => cx.say(format!("it starts again without {failed}")),
        Err(failure) => cx.warn(format!(
            "it may get {failed} again: {failure}; while it waits, type: scontrol update {}",
            change.join(" ")
        )),
    }
    Ok(())
}

fn scontrol(words: &[&str]) -> Result<String, Failure> {
    let said = Command::new("scontrol")
        .args(words)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Failure::request(format!("scontrol: {e}")))?;
    if !said.status.success() {
        let why = String::from_utf8_lossy(&said.stderr);
        let why = why.lines().map(str::trim).find(|line| !line.is_empty());
        return Err(Failure::request(format!(
            "scontrol {}: {}",
            words[0],
            why.unwrap_or("it failed without a word")
        )));
    }
    Ok(String::from_utf8_lossy(&said.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_slurm_says_of_a_job_is_read() {
        let line = "JobId=4711 JobName=train UserId=ann(1000) JobState=RUNNING Requeue=1 BatchFlag=1 \
                    ReqNodeList=(null) ExcNodeList=n[1-2] NodeList=n[3-5]\n";
        let about = About::read(line);
        assert_eq!(about.excluded, "n[1-2]");
        assert!(about.state == "RUNNING" && about.is_batch && about.may_requeue);
        let about = About::read("JobState=COMPLETING Requeue=0 BatchFlag=0 ExcNodeList=(null)");
        assert_eq!(about.excluded, "");
        assert!(!about.is_batch && !about.may_requeue);
    }
}
