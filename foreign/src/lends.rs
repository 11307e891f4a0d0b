//! Whether the command of a host in an MPI world only waits, so that its node can be lent to the
//! launcher. Nothing of such a command is run.

use crate::{
    launch::{self, Launch},
    pod::Pod,
    shell,
    verdict::Verdicts,
    words::Known,
};

/// What the containers start whose nodes are lent: nothing, until they are asked. `None`: they run
/// something of their own.
pub(crate) fn idle(pod: &Pod<'_>) -> Option<Launch> {
    let words: Vec<String> = pod.words.iter().map(|word| word.text.clone()).collect();
    (!pod.names_program || is_idle(&words)).then(|| launch::program(&[]))
}

/// The same with a refusal.
pub(crate) fn must_lend(pod: &Pod<'_>, log: &mut Verdicts) -> Option<Launch> {
    let launch = idle(pod);
    if launch.is_none() {
        let words: Vec<&str> = pod.words.iter().map(|word| &*word.text).collect();
        log.refuse(
            &pod.container,
            format!(
                "runs {:?} in the workers, which may only wait (sleep, sshd): the launcher starts the ranks",
                words.join(" ")
            ),
        );
    }
    launch
}

/// Whether a command only waits: `sleep`, `sshd`, `tail -f /dev/null`, also as the text of a shell.
fn is_idle(words: &[String]) -> bool {
    let Some((first, rest)) = words.split_first() else {
        return true;
    };
    match (launch::stem(first), rest) {
        ("sleep" | "sshd", _) => true,
        ("tail", [follow, file]) => follow.starts_with('-') && file == "/dev/null",
        ("sh" | "bash", [option, text]) if option.ends_with('c') => {
            let simple = shell::simple(text, &Known::new());
            match simple {
                Some(simple) => {
                    let words = simple.words.into_iter().map(|word| word.text);
                    is_idle(&words.collect::<Vec<_>>())
                }
                None => waits(text),
            }
        }
        _ => false,
    }
}

/// Whether each command of a longer text only waits, or prepares sshd.
fn waits(text: &str) -> bool {
    let replaces = text.contains('`') || text.contains("$(");
    let prepares = |words: &[String]| match words {
        [first, ..] if first == "mkdir" || first == "ssh-keygen" => true,
        [service, ssh, start] => {
            service == "service" && matches!(&**ssh, "ssh" | "sshd") && start == "start"
        }
        _ => false,
    };
    let commands = shell::commands(text);
    let all = commands
        .iter()
        .all(|words| is_idle(words) || prepares(words));
    !replaces && all && commands.iter().any(|words| is_idle(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_only_wait_are_known() {
        let idle = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            is_idle(&words)
        };
        assert!(idle(&[]));
        assert!(idle(&["/usr/sbin/sshd", "-De"]));
        assert!(idle(&["tail", "-f", "/dev/null"]));
        for text in [
            "/usr/sbin/sshd && sleep 40000",
            "exec sleep infinity",
            "mkdir -p /run/sshd; service ssh start; sleep 365d",
        ] {
            assert!(idle(&["/bin/bash", "-c", text]), "{text}");
        }
        for text in [
            "/usr/sbin/sshd && python serve.py",
            "sleep 5; python serve.py",
            "sleep 1; sleep \"$(python serve.py)\"",
            "mkdir /x; service ssh start",
            "sleep 5 | tee",
        ] {
            assert!(!idle(&["/bin/bash", "-c", text]), "{text}");
        }
    }
}
