//! `muster replay`: prints a recorded history in plain words. The file holds all the words; this
//! code knows nothing about its writer.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal},
};

use clap::Args;
use serde::Deserialize;

use crate::{context::Context, fail::Failure};

/// The only version of the format so far.
const VERSION: u64 = 1;
/// Bytes of the longest line. The longest real ones name a few hundred nodes.
const LINE_MAX: usize = 1024 * 1024;

/// Tell a recorded history, event by event.
///
/// The simulator of Muster's own tests writes such a file when a history breaks a rule: the faults,
/// what each part of Muster did about them, and at the end the rule that was broken.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # All of it
  muster replay history.jsonl

  # One event at a time, of one node; Enter goes on, q ends
  muster replay history.jsonl --step --node n3

  # What one job went through
  muster replay history.jsonl --job digits")]
pub(crate) struct Replay {
    /// The history; - is standard input
    #[arg(value_name = "FILE")]
    file: String,

    /// Only events about this node; may be given more than once
    #[arg(long, value_name = "NODE")]
    node: Vec<String>,

    /// Only events about this job, by its name or its uid in the history; may be given more than
    /// once
    #[arg(long, value_name = "JOB")]
    job: Vec<String>,

    /// Wait for Enter after every event
    #[arg(long)]
    step: bool,
}

/// The first line: the origin of this history.
#[derive(Debug, Deserialize)]
struct Head {
    log: String,
    version: u64,
    seed: Option<u64>,
    nodes: Option<u64>,
    planted: Option<String>,
    broken: Option<Broken>,
    /// The command that makes the writer repeat this history.
    again: Option<String>,
    /// Job names by uid.
    #[serde(default)]
    jobs: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Broken {
    rule: String,
    what: String,
}

/// Every other line: one event.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Happening {
    at_us: u64,
    kind: String,
    #[serde(default)]
    nodes: Vec<String>,
    #[serde(default)]
    jobs: Vec<String>,
    text: String,
}

pub(crate) fn replay(cx: &Context, args: Replay) -> Result<(), Failure> {
    if args.step && args.file == "-" {
        return Err(Failure::usage(
            "--step waits for Enter on standard input, where the history would come from: give a file",
        ));
    }
    let input: Box<dyn BufRead> = match args.file.as_str() {
        "-" => Box::new(BufReader::new(io::stdin())),
        path => Box::new(BufReader::new(
            File::open(path).map_err(|e| Failure::request(format!("open {path}: {e}")))?,
        )),
    };
    let mut lines = Lines {
        input,
        file: &args.file,
        number: 0,
    };
    let head: Head = lines.next()?.ok_or_else(|| lines.wrong("is empty"))?;
    if head.version != VERSION {
        return Err(lines.wrong(format!(
            "has version {}, this muster reads version {VERSION}",
            head.version
        )));
    }
    cx.print(&introduction(&head))?;
    let (mut told, mut all) = (0u64, 0u64);
    while let Some(happening) = lines.next::<Happening>()? {
        all += 1;
        if !concerns(&args, &head, &happening) {
            continue;
        }
        told += 1;
        cx.print(&line(&head, &happening))?;
        if args.step && !goes_on()? {
            break;
        }
    }
    if told < all && !args.step {
        cx.say(format!(
            "{told} of {all} events; the others concern other nodes and jobs"
        ));
    }
    Ok(())
}

fn introduction(head: &Head) -> String {
    let mut text = format!("a history of {}", head.log);
    if let Some(seed) = head.seed {
        text += &format!(", seed {seed}");
    }
    if let Some(nodes) = head.nodes {
        text += &format!(", {nodes} nodes");
    }
    text.push('\n');
    for (uid, name) in &head.jobs {
        text += &format!("job {uid} is {name}\n");
    }
    if let Some(planted) = &head.planted {
        text += &format!("with a mistake put in: {planted}\n");
    }
    match &head.broken {
        Some(broken) => {
            text += &format!(
                "it ends with a break of rule {}: {}\n",
                broken.rule, broken.what
            )
        }
        None => text += "no rule is broken in it\n",
    }
    if let Some(again) = &head.again {
        text += &format!("again: {again}\n");
    }
    text + "\n"
}

/// An event concerns the nodes and jobs that it names. An event that names none, and a broken rule,
/// concern every reader.
fn concerns(args: &Replay, head: &Head, happening: &Happening) -> bool {
    if happening.kind == "broken" {
        return true;
    }
    let is_node =
        args.node.is_empty() || happening.nodes.iter().any(|node| args.node.contains(node));
    let called = |uid: &String| {
        let name = head.jobs.get(uid);
        let short = name.and_then(|name| name.rsplit('/').next());
        args.job
            .iter()
            .any(|wanted| wanted == uid || Some(wanted) == name || Some(wanted.as_str()) == short)
    };
    is_node && (args.job.is_empty() || happening.jobs.iter().any(called))
}

/// `+12.345 s` and the event. Faults and broken rules have a mark on the left.
fn line(head: &Head, happening: &Happening) -> String {
    let at = format!(
        "+{}.{:03} s",
        happening.at_us / 1_000_000,
        happening.at_us / 1_000 % 1_000
    );
    let mark = match happening.kind.as_str() {
        "fault" => "!!",
        "broken" => "##",
        "event" => " *",
        "user" => " >",
        _ => "  ",
    };
    let mut text = happening.text.clone();
    // Replaces a uid only together with its generation, as uid7-g2, so that the digits of another
    // uid do not match.
    for uid in happening.jobs.iter().rev() {
        if let Some(name) = head.jobs.get(uid) {
            let short = name.rsplit('/').next().unwrap_or(name);
            text = text.replace(&format!("{uid}-g"), &format!("{short}({uid})-g"));
        }
    }
    format!("{at:>12} {mark} {text}\n")
}

/// False: the person wants to stop.
fn goes_on() -> Result<bool, Failure> {
    if io::stdin().is_terminal() {
        eprint!(":");
    }
    let mut answer = String::new();
    let read = io::stdin()
        .read_line(&mut answer)
        .map_err(|e| Failure::request(format!("read standard input: {e}")))?;
    Ok(read > 0 && !answer.trim_start().starts_with(['q', 'Q']))
}

/// A file with one JSON object per line.
struct Lines<'a> {
    input: Box<dyn BufRead>,
    file: &'a str,
    number: usize,
}

impl Lines<'_> {
    fn next<T: for<'de> Deserialize<'de>>(&mut self) -> Result<Option<T>, Failure> {
        let mut text = Vec::new();
        self.number += 1;
        let mut limited = io::Read::take(&mut self.input, LINE_MAX as u64 + 1);
        limited
            .read_until(b'\n', &mut text)
            .map_err(|e| self.wrong(e))?;
        if text.is_empty() {
            return Ok(None);
        }
        if text.len() > LINE_MAX {
            return Err(self.wrong(format!("is longer than {LINE_MAX} bytes")));
        }
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|e| self.wrong(e))
    }

    fn wrong(&self, what: impl std::fmt::Display) -> Failure {
        Failure::request(format!("{}:{}: {what}", self.file, self.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        serde_json::from_str(
            r#"{"log":"muster-world","version":1,"seed":7,"nodes":2,"jobs":{"uid1":"default/digits"},
                "broken":{"rule":"I1","what":"two groups work on n0"}}"#,
        )
        .unwrap()
    }

    fn happening(text: &str) -> Happening {
        Happening {
            at_us: 12_345_678,
            kind: "step".into(),
            nodes: vec!["n1".into()],
            jobs: vec!["uid1".into()],
            text: text.into(),
        }
    }

    #[test]
    fn a_line_names_the_job_and_the_moment() {
        assert_eq!(
            line(&head(), &happening("n1 holds uid1-g2")),
            "   +12.345 s    n1 holds digits(uid1)-g2\n"
        );
        let fault = Happening {
            kind: "fault".into(),
            ..happening("PowerCut at n1: the machine loses power")
        };
        assert_eq!(
            line(&head(), &fault),
            "   +12.345 s !! PowerCut at n1: the machine loses power\n"
        );
        assert!(
            introduction(&head())
                .contains("it ends with a break of rule I1: two groups work on n0\n")
        );
    }

    #[test]
    fn filters_take_names_and_uids_and_never_hide_the_end() {
        let args = |node: &[&str], job: &[&str]| Replay {
            file: String::new(),
            node: node.iter().map(|node| (*node).to_owned()).collect(),
            job: job.iter().map(|job| (*job).to_owned()).collect(),
            step: false,
        };
        let here = happening("x");
        assert!(concerns(&args(&[], &[]), &head(), &here));
        assert!(
            concerns(&args(&["n1"], &["digits"]), &head(), &here)
                && concerns(&args(&[], &["uid1"]), &head(), &here)
        );
        assert!(
            !concerns(&args(&["n0"], &[]), &head(), &here)
                && !concerns(&args(&["n1"], &["other"]), &head(), &here)
        );
        let broken = Happening {
            kind: "broken".into(),
            ..happening("I1")
        };
        assert!(concerns(&args(&["n0"], &["other"]), &head(), &broken));
    }

    #[test]
    fn damage_is_named_with_its_line() {
        let text = "{\"log\":\"x\",\"version\":1}\nnonsense\n";
        let mut lines = Lines {
            input: Box::new(text.as_bytes()),
            file: "h.jsonl",
            number: 0,
        };
        assert!(lines.next::<Head>().unwrap().is_some());
        let error = lines.next::<Happening>().unwrap_err().to_string();
        assert!(error.starts_with("h.jsonl:2: "), "{error}");
    }
}
