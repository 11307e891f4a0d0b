//! Compares what a script of the suite has left in a lane with what it has left under plain
//! torchrun. Every allowed difference stands in [`DIFFERENCES`] or [`ENVIRONMENT`], with its reason.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use serde_json::{Map, Value};

use crate::{RANKS, SCRIPTS};

const ALL: &[&str] = &["cold", "parked", "fork", "direct", "exec"];
const FORK: &[&str] = &["fork"];

/// What a script may see differently than under plain torchrun: the lanes, the field as `start.py`
/// calls it, and why the difference does no harm.
const DIFFERENCES: [(&[&str], &str, &str); 11] = [
    (
        ALL,
        "env",
        "Muster has variables of its own, and some have another value in every job: ENVIRONMENT names them",
    ),
    (
        ALL,
        "chances",
        "random numbers begin by chance; that no two processes begin alike is checked",
    ),
    (ALL, "torch.rand", "the same"),
    (ALL, "torch.seed", "the same"),
    (
        ALL,
        "torch.authkey",
        "a secret of each process; that no two are alike is checked",
    ),
    (
        FORK,
        "modules",
        "what the script imports is there already; that nothing is missing, and nothing of the job's own there, is checked",
    ),
    (
        FORK,
        "also_main",
        "multiprocessing, once it is imported, has a second name for the main module: the same module",
    ),
    (
        FORK,
        "atexit",
        "what modules register for the end when they are imported is registered already",
    ),
    (
        FORK,
        "meta_path",
        "one finder more, in front: it notes what is imported, for the next generation, and from which file",
    ),
    (
        FORK,
        "stack",
        "frames of the launcher lie below the script's: not in the traceback of an exception, but in a stack that is printed; and \
                     four calls less fit before a RecursionError",
    ),
    (
        FORK,
        "frozen",
        "what was imported ahead is exempt from garbage collection, so that the ranks of a node share those pages",
    ),
];

/// Variables of a rank that plain torchrun does not set, or sets differently.
const ENVIRONMENT: [(&str, &str); 14] = [
    ("MASTER_ADDR", "of the store that Muster serves"),
    ("MASTER_PORT", "of the store that Muster serves"),
    (
        "TORCHELASTIC_RUN_ID",
        "the job's uid, which stays; that it does is checked",
    ),
    ("TORCHELASTIC_ERROR_FILE", "lies in the run's directory"),
    (
        "TORCH_ELASTIC_WORKER_IDENTICAL",
        "asks torchrun not to exchange roles",
    ),
    (
        "GLOO_SOCKET_IFNAME",
        "lo where the node's address is a loopback one; a job may set its own",
    ),
    (
        "PYTHON_EXEC",
        "the way of this test to give the interpreter options under plain torchrun, which has none for it",
    ),
    (
        "PWD",
        "a shell's, which this test puts between plain torchrun and its ranks for those options",
    ),
    ("OLDPWD", "the same"),
    ("NODE_GPU_COUNT", "part of the node's own profile"),
    ("NODE_GPU_MODEL", "the same"),
    (
        "TORCHINDUCTOR_CACHE_DIR",
        "a folder of the job on its node, which outlives generations",
    ),
    ("TRITON_CACHE_DIR", "the same"),
    ("MUSTER_", "Muster's own"),
];

/// What a rank that fell because a peer was lost leaves out at its end: the end of its modules.
/// That would take half a second of every re-form. Its threads, exit handlers and files are ended
/// properly.
const NO_TEARDOWN: (&[&str], &str, &str) = (FORK, "0.peer lost.txt", "let go of a global\n");

/// The differences that are not allowed, each in the suite's words. An error: what a script should
/// have left is not there, or cannot be read.
pub type Differences = Result<Vec<String>, String>;

/// Compares what `start.py` has left: in the folder of plain torchrun, and in that of a lane.
pub fn starts(lane: &str, plain: &Path, own: &Path) -> Differences {
    let mut wrong = Vec::new();
    for rank in RANKS {
        let (expected, seen) = (start(plain, rank)?, start(own, rank)?);
        wrong.extend(
            of_one_start(lane, &expected, &seen)
                .into_iter()
                .map(|what| format!("{lane}, rank {rank}: {what}")),
        );
    }
    let (expected, seen) = (names(plain)?, names(own)?);
    if seen != expected {
        wrong.push(format!("{lane}: it left {seen:?} instead of {expected:?}"));
        return Ok(wrong);
    }
    for name in expected.iter().filter(|name| !name.ends_with(".json")) {
        let (lanes, way, words) = NO_TEARDOWN;
        let mut expected = left(plain, name)?;
        if lanes.contains(&lane) && name == way {
            expected = expected.replace(words, "");
        }
        let (seen, expected) = (
            without_launcher(&left(own, name)?),
            without_launcher(&expected),
        );
        if seen != expected {
            wrong.push(format!(
                "{lane}: {name}:\n{seen}\n--- instead of\n{expected}"
            ));
        }
    }
    Ok(wrong)
}

/// Whether plain torchrun ended `start.py` as it was meant to: rank 1 failed, and rank 0 was told to
/// stop. Older releases of torchrun, as 2.8, do not look at a rank again that they have stopped; that it
/// was told is in the file that it left.
pub fn start_ends_as_it_should(verdict: &Value) -> bool {
    let told = &verdict["0"][0];
    verdict["1"][0] == 1 && (told.is_null() || *told == 5)
}

/// The values that `start.py` began with by chance in these folders, so far as two processes have
/// the same one.
pub fn chances_met(folders: &[&Path]) -> Differences {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for folder in folders {
        for rank in RANKS {
            let start = start(folder, rank)?;
            let drawn = start.get("chances").and_then(Value::as_array);
            let named = ["torch.rand", "torch.seed", "torch.authkey"];
            let values = named.iter().filter_map(|name| start.get(*name));
            for value in values.chain(drawn.into_iter().flatten()) {
                *seen.entry(value.to_string()).or_default() += 1;
            }
        }
    }
    let met = seen.into_iter().filter(|(_, count)| *count > 1);
    Ok(met
        .map(|(value, count)| format!("{count} processes began alike: {value}"))
        .collect())
}

/// Compares a file of each rank that must be the same. `name` makes its name of the rank.
pub fn same_files(
    lane: &str,
    plain: (&Path, &dyn Fn(&str) -> String),
    own: (&Path, &dyn Fn(&str) -> String),
) -> Differences {
    let mut wrong = Vec::new();
    for rank in RANKS {
        let (expected, seen) = (
            left(plain.0, &(plain.1)(rank))?,
            left(own.0, &(own.1)(rank))?,
        );
        if seen != expected {
            wrong.push(format!(
                "{lane}, {}:\n{seen}\n--- instead of\n{expected}",
                (own.1)(rank)
            ));
        }
    }
    Ok(wrong)
}

/// A file that a script left, with the folder's name replaced by the same one for all.
pub fn as_plain(folder: &Path, name: &str) -> Result<String, String> {
    left(folder, name)
}

fn left(folder: &Path, name: &str) -> Result<String, String> {
    let trouble = |e| format!("{name} in {}: {e}", folder.display());
    let text = fs::read(folder.join(name)).map_err(trouble)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(text.replace(&*folder.to_string_lossy(), "FOLDER"))
}

fn names(folder: &Path) -> Result<BTreeSet<String>, String> {
    let trouble = |e: std::io::Error| format!("{}: {e}", folder.display());
    let entries = fs::read_dir(folder).map_err(trouble)?;
    entries
        .map(|entry| {
            let name = entry.map_err(trouble)?.file_name();
            Ok(name.to_string_lossy().into_owned())
        })
        .collect()
}

/// What one rank saw, as a flat map.
fn start(folder: &Path, rank: &str) -> Result<Map<String, Value>, String> {
    let name = format!("{rank}.json");
    let trouble = |e: &str| format!("{name} in {}: {e}", folder.display());
    let text = left(folder, &name)?;
    let seen = serde_json::from_str(&text).map_err(|e| trouble(&e.to_string()))?;
    let Value::Object(mut seen) = seen else {
        return Err(trouble("it is no object"));
    };
    if let Some(Value::Object(torch)) = seen.remove("torch") {
        seen.extend(
            torch
                .into_iter()
                .map(|(name, value)| (format!("torch.{name}"), value)),
        );
    }
    for field in ["env", "modules", "torch.seed"] {
        if !seen.contains_key(field) {
            return Err(trouble(&format!("it lacks {field}")));
        }
    }
    Ok(seen)
}

/// The differences that are not allowed.
fn of_one_start(lane: &str, plain: &Map<String, Value>, seen: &Map<String, Value>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (field, value) in plain {
        let differs = DIFFERENCES
            .iter()
            .any(|(lanes, name, _)| lanes.contains(&lane) && name == field);
        let own = seen.get(field).unwrap_or(&Value::Null);
        if !differs && own != value {
            wrong.push(format!("{field}: {own} instead of {value}"));
        }
    }
    let none = Map::new();
    let (own, theirs) = (
        seen["env"].as_object().unwrap_or(&none),
        plain["env"].as_object().unwrap_or(&none),
    );
    let all: BTreeSet<&String> = own.keys().chain(theirs.keys()).collect();
    for name in all {
        let may_differ = ENVIRONMENT
            .iter()
            .any(|(known, _)| name == known || known.ends_with('_') && name.starts_with(known));
        if !may_differ && own.get(name) != theirs.get(name) {
            wrong.push(format!(
                "environment: {name}: {:?} instead of {:?}",
                own.get(name),
                theirs.get(name)
            ));
        }
    }
    let texts = |value: &Value| {
        let list = value.as_array().cloned().unwrap_or_default();
        list.iter()
            .filter_map(|name| Some(name.as_str()?.to_owned()))
            .collect::<BTreeSet<_>>()
    };
    let (modules, needed) = (texts(&seen["modules"]), texts(&plain["modules"]));
    wrong.extend(
        needed
            .difference(&modules)
            .map(|name| format!("module {name} is not there")),
    );
    // The scripts of the suite are those of the job.
    wrong.extend(
        SCRIPTS
            .iter()
            .filter_map(|(file, _)| file.strip_suffix(".py"))
            .filter(|name| modules.contains(*name))
            .map(|name| format!("module {name} is the job's own and is there")),
    );
    wrong
}

/// A text without the parts that `stack` and `modules` of [`DIFFERENCES`] describe: the launcher's
/// frames, the number of calls before a RecursionError, and the list of modules after a crash.
/// Addresses are removed too.
fn without_launcher(text: &str) -> String {
    let mut kept = Vec::new();
    let mut within = false;
    for line in text.lines() {
        within = line.contains("/launcher.py\"") || within && line.starts_with("    ");
        let by_chance = [
            "Extension modules: ",
            "Current thread ",
            "  [Previous line repeated ",
        ];
        if !within && !line.is_empty() && !by_chance.iter().any(|start| line.starts_with(start)) {
            kept.push(line);
        }
    }
    kept.join("\n")
}
