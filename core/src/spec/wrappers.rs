//! Programs that run the command in their own words: `nice -n 1 torchrun train.py`.
//!
//! A table has their options, because only who knows which of them take a value finds the command
//! behind them. It also says what becomes of a wrapper when torchrun behind it is taken off: it is kept around
//! each rank, it is left out, or nothing could keep its meaning. This file knows no launcher.
//!
//! Sources: coreutils 9.1, util-linux 2.38, numactl 2.0.16, tini 0.19, dumb-init 1.2.5, catatonit 0.1.7,
//! GNU time 1.9, strace 6.1, xvfb-run of xorg-server 21.1, glibc 2.34 (catsegv), sudo 1.9.13, uv 0.9,
//! poetry 2, pipenv 2025, pdm 2.26, conda 25, micromamba 2, pixi 0.5x, rye 0.44, Nsight Systems 2025 and
//! Nsight Compute 2025.

/// What becomes of a wrapper whose torchrun is taken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Each rank runs behind it. What it sets, a child inherits; or it does the same to each rank as to
    /// all of them.
    Kept,
    /// It is not needed, for this reason.
    LeftOut(&'static str),
    /// Its meaning would be lost, for this reason.
    Lost(&'static str),
}

/// One kind of wrapper.
#[derive(Debug)]
pub struct Wrapper {
    /// Names of the program.
    names: &'static [&'static str],
    /// The word that must come before the command, as `run` of `conda run`.
    verb: Option<&'static str>,
    /// Options without a value, without their dashes.
    flags: &'static [&'static str],
    /// Options with one.
    values: &'static [&'static str],
    /// Operands before the command, as the duration of `timeout`.
    operands: usize,
    fate: Fate,
    /// Options that change its fate.
    except: &'static [(&'static str, Fate)],
    /// Options with a file that it writes. Ranks must not share it.
    files: &'static [&'static str],
}

/// Most of a table's rows.
const USUAL: Wrapper = Wrapper {
    names: &[],
    verb: None,
    flags: &[],
    values: &[],
    operands: 0,
    fate: Fate::Kept,
    except: &[],
    files: &[],
};

const REAPS: Fate = Fate::LeftOut("Muster passes signals on and reaps what ranks leave behind");
const OTHER_USER: Fate =
    Fate::Lost("ranks run as the agents' user, who could not stop those of another user");
const EMPTY: Fate = Fate::Lost("it would take from each rank the variables that tell it its place");
const SIGNALS: Fate = Fate::Lost("a stop of Muster would reach the ranks as another signal");

#[rustfmt::skip]
const TABLE: &[Wrapper] = &[
    Wrapper { names: &["nice"], values: &["n", "adjustment"], ..USUAL },
    Wrapper { names: &["ionice"], flags: &["t", "ignore"], values: &["c", "class", "n", "classdata"], ..USUAL },
    Wrapper {
        names: &["chrt"],
        flags: &["b", "batch", "d", "deadline", "f", "fifo", "i", "idle", "o", "other", "r", "rr", "R", "reset-on-fork", "a", "all-tasks", "v", "verbose"],
        values: &["T", "sched-runtime", "P", "sched-period", "D", "sched-deadline"],
        operands: 1,
        ..USUAL
    },
    Wrapper { names: &["taskset"], flags: &["a", "all-tasks", "c", "cpu-list"], operands: 1, ..USUAL },
    Wrapper {
        names: &["numactl"],
        flags: &["a", "all", "b", "balancing", "l", "localalloc"],
        values: &["i", "interleave", "p", "preferred", "P", "preferred-many", "C", "physcpubind", "c", "cpubind", "N", "cpunodebind", "m", "membind"],
        ..USUAL
    },
    Wrapper { names: &["stdbuf"], values: &["i", "input", "o", "output", "e", "error"], ..USUAL },
    Wrapper {
        names: &["prlimit"],
        flags: &["verbose"],
        // Their value comes in the same word.
        values: &[],
        ..USUAL
    },
    Wrapper {
        names: &["env"],
        flags: &["i", "ignore-environment", "v", "debug", "block-signal", "default-signal", "ignore-signal", "list-signal-handling"],
        values: &["u", "unset", "C", "chdir"],
        except: &[("i", EMPTY), ("ignore-environment", EMPTY)],
        ..USUAL
    },
    // Each rank is ended after the same time, as all of them were.
    Wrapper {
        names: &["timeout"],
        flags: &["preserve-status", "foreground", "v", "verbose", "f", "p"],
        values: &["k", "kill-after", "s", "signal"],
        operands: 1,
        ..USUAL
    },
    Wrapper {
        names: &["time"],
        flags: &["a", "append", "v", "verbose", "q", "quiet", "p", "portability"],
        values: &["f", "format", "o", "output"],
        files: &["o", "output"],
        ..USUAL
    },
    Wrapper { names: &["catsegv"], ..USUAL },
    Wrapper { names: &["nohup"], fate: Fate::LeftOut("ranks have no terminal that could hang up"), ..USUAL },
    Wrapper {
        names: &["setsid"],
        flags: &["c", "ctty", "f", "fork", "w", "wait"],
        fate: Fate::LeftOut("each rank has a session of its own anyway"),
        ..USUAL
    },
    Wrapper {
        names: &["tini", "tini-static"],
        flags: &["s", "v", "w", "g"],
        values: &["p", "e"],
        fate: REAPS,
        except: &[("e", Fate::Lost("it would hide the exit code by which Muster knows how a rank ended"))],
        ..USUAL
    },
    Wrapper {
        names: &["dumb-init"],
        flags: &["c", "single-child", "v", "verbose"],
        values: &["r", "rewrite"],
        fate: REAPS,
        except: &[("r", SIGNALS), ("rewrite", SIGNALS)],
        ..USUAL
    },
    Wrapper { names: &["catatonit"], flags: &["g", "P"], fate: REAPS, ..USUAL },
    Wrapper { names: &["nvidia_entrypoint.sh"], ..USUAL },
    Wrapper {
        names: &["conda", "mamba"],
        verb: Some("run"),
        flags: &["v", "verbose", "dev", "debug-wrapper-scripts", "no-capture-output", "live-stream", "q", "quiet"],
        values: &["n", "name", "p", "prefix", "cwd"],
        ..USUAL
    },
    Wrapper {
        names: &["micromamba"],
        verb: Some("run"),
        flags: &["d", "detach", "clean-env", "no-rc", "no-env", "v", "verbose", "q", "quiet"],
        values: &["n", "name", "p", "prefix", "r", "root-prefix", "rc-file", "a", "attach", "cwd", "e", "env", "label"],
        except: &[
            ("clean-env", EMPTY),
            ("d", Fate::Lost("it would not wait for its rank")),
            ("detach", Fate::Lost("it would not wait for its rank")),
        ],
        ..USUAL
    },
    Wrapper {
        names: &["pixi"],
        verb: Some("run"),
        flags: &["frozen", "locked", "no-install", "no-lockfile-update", "clean-env", "skip-deps", "as-is", "x", "executable", "v", "verbose", "q", "quiet", "no-progress", "no-lock-file-update", "force-activate", "n", "dry-run"],
        values: &["manifest-path", "m", "e", "environment", "color", "concurrent-downloads", "concurrent-solves", "w", "workspace"],
        except: &[("clean-env", EMPTY), ("dry-run", Fate::Lost("it would run nothing")), ("n", Fate::Lost("it would run nothing"))],
        ..USUAL
    },
    Wrapper {
        names: &["uv"],
        verb: Some("run"),
        flags: &[
            "all-extras", "no-dev", "only-dev", "no-default-groups", "all-groups", "no-editable", "exact", "no-env-file",
            "isolated", "active", "no-sync", "locked", "frozen", "all-packages", "no-project", "no-index", "U", "upgrade",
            "no-sources", "reinstall", "compile-bytecode", "no-build-isolation", "no-build", "no-binary", "require-build-hashes",
            "no-require-build-hashes", "no-verify-hashes", "n", "no-cache", "refresh", "managed-python", "no-managed-python",
            "no-python-downloads", "q", "quiet", "v", "verbose", "system-certs", "native-tls", "offline", "no-progress", "no-config",
            "dev", "no-workspace",
        ],
        values: &[
            "extra", "no-extra", "group", "no-group", "only-group", "no-editable-package", "env-file", "w", "with",
            "with-editable", "with-requirements", "package", "python-platform", "index", "default-index", "i", "index-url",
            "extra-index-url", "f", "find-links", "index-strategy", "keyring-provider", "P", "upgrade-package", "upgrade-group",
            "resolution", "prerelease", "prerelease-package", "fork-strategy", "exclude-newer", "exclude-newer-package",
            "no-sources-package", "reinstall-package", "link-mode", "C", "config-setting", "config-settings-package",
            "no-build-isolation-package", "no-build-package", "no-binary-package", "cache-dir", "refresh-package", "p", "python",
            "color", "allow-insecure-host", "directory", "project", "config-file", "python-preference",
        ],
        ..USUAL
    },
    Wrapper {
        names: &["poetry"],
        verb: Some("run"),
        flags: &["q", "quiet", "ansi", "no-ansi", "n", "no-interaction", "no-plugins", "no-cache", "v", "verbose"],
        values: &["P", "project", "C", "directory"],
        ..USUAL
    },
    Wrapper { names: &["pipenv"], verb: Some("run"), flags: &["system", "v", "verbose", "q", "quiet"], ..USUAL },
    Wrapper {
        names: &["pdm"],
        verb: Some("run"),
        flags: &["v", "verbose", "q", "quiet", "g", "global", "s", "site-packages", "recreate", "I", "ignore-python"],
        values: &["p", "project", "k", "skip", "env", "env-file", "working-dir", "c", "config"],
        ..USUAL
    },
    Wrapper { names: &["rye"], verb: Some("run"), flags: &["v", "verbose", "q", "quiet"], values: &["pyproject"], ..USUAL },
    Wrapper {
        names: &["xvfb-run"],
        flags: &["a", "auto-servernum", "l", "listen-tcp"],
        values: &["e", "error-file", "f", "auth-file", "n", "server-num", "p", "xauth-protocol", "s", "server-args", "w", "wait"],
        ..USUAL
    },
    Wrapper {
        names: &["strace"],
        flags: &[
            "A", "C", "d", "D", "f", "F", "h", "i", "k", "q", "r", "t", "T", "v", "V", "w", "x", "y", "Y", "z", "Z", "c", "n", "N",
            "follow-forks", "output-separately", "output-append-mode", "summary", "summary-only", "seccomp-bpf", "debug",
            "relative-timestamps", "absolute-timestamps", "timestamps", "no-abbrev", "decode-fds", "decode-pids", "stack-traces",
            "successful-only", "failed-only", "daemonize", "instruction-pointer", "syscall-number", "summary-wall-clock",
            "strings-in-hex", "quiet", "silent", "silence", "kill-on-exit",
        ],
        values: &[
            "I", "b", "e", "a", "o", "s", "X", "O", "S", "P", "U", "E", "u", "interruptible", "detach-on", "columns", "output",
            "string-limit", "const-print-style", "summary-syscall-overhead", "summary-sort-by", "trace-path", "summary-columns",
            "env", "user", "trace", "signal", "status", "abbrev", "verbose", "raw", "read", "write", "fault", "inject", "trace-fds",
        ],
        except: &[("u", OTHER_USER), ("user", OTHER_USER)],
        files: &["o", "output"],
        ..USUAL
    },
    // All its options take a value.
    Wrapper {
        names: &["nsys"],
        verb: Some("profile"),
        values: &[
            "b", "c", "d", "e", "f", "n", "o", "p", "s", "t", "w", "x", "y", "backtrace", "capture-range", "capture-range-end",
            "clock-frequency-changes", "command-file", "cpu-core-events", "cpu-core-metrics", "cpuctxsw", "cuda-event-trace",
            "cuda-flush-interval", "cuda-graph-trace", "cuda-memory-usage", "cuda-um-cpu-page-faults", "cuda-um-gpu-page-faults",
            "cudabacktrace", "delay", "duration", "enable", "env-var", "etw-provider", "event-sample", "event-sampling-interval",
            "export", "flush-on-cudaprofilerstop", "force-overwrite", "ftrace", "ftrace-keep-user-config", "gpu-metrics-device",
            "gpu-metrics-devices", "gpu-metrics-frequency", "gpu-metrics-set", "gpuctxsw", "hotkey-capture", "ib-net-info-devices",
            "ib-switch-metrics-devices", "ib-switch-metrics-device", "inherit-environment", "isr", "kill", "mpi-impl", "nic-metrics", "nvtx-capture",
            "nvtx-domain-include", "nvtx-domain-exclude", "opengl-gpu-workload", "os-events", "osrt-backtrace-depth",
            "osrt-backtrace-stack-size", "osrt-backtrace-threshold", "osrt-events", "osrt-threshold", "output", "process-scope",
            "python-backtrace", "python-functions-trace", "python-sampling", "python-sampling-frequency", "pytorch", "dask",
            "resolve-symbols", "retain-etw-files", "run-as", "sample", "samples-per-backtrace", "sampling-frequency",
            "sampling-period", "sampling-trigger", "session-new", "show-output", "soc-metrics", "soc-metrics-frequency",
            "soc-metrics-set", "start-frame-index", "start-agent", "stats", "stop-on-exit", "storage-metrics", "syscall", "trace", "trace-fork-before-exec",
            "vsync", "vulkan-gpu-workload", "wait", "wddm-additional-events", "wddm-backtraces", "xhv-trace", "xhv-trace-events",
        ],
        files: &["o", "output"],
        except: &[("run-as", OTHER_USER)],
        ..USUAL
    },
    Wrapper {
        names: &["ncu", "nv-nsight-cu-cli"],
        flags: &[
            "f", "force-overwrite", "nvtx", "quiet", "verbose", "csv", "call-stack", "support-32bit", "open-in-ui", "injection-path-32",
        ],
        values: &[
            "o", "export", "k", "kernel-name", "s", "launch-skip", "c", "launch-count", "kernel-id", "kernel-name-base", "set",
            "section", "section-folder", "section-folder-recursive", "metrics", "page", "target-processes",
            "target-processes-filter", "profile-from-start", "replay-mode", "app-replay-buffer", "app-replay-match",
            "app-replay-mode", "cache-control", "clock-control", "pm-sampling-interval", "pm-sampling-buffer-size", "sampling-interval",
            "sampling-buffer-size", "sampling-max-passes", "warp-sampling-interval", "import-source", "source-folders",
            "nvtx-include", "nvtx-exclude", "log-file", "devices", "mode", "config-file", "config-file-path", "check-exit-code",
            "apply-rules", "rule", "graph-profiling", "range-filter", "range-replay-options", "filter-mode", "launch-skip-before-match",
            "print-units", "print-details", "print-summary", "print-kernel-base", "print-fp", "print-metric-name", "max-connections",
            "port", "p", "hostname", "chips", "disable-extra-suffixes", "kill", "communicator", "lockstep-kernel-launch",
        ],
        files: &["o", "export", "log-file"],
        ..USUAL
    },
    Wrapper {
        names: &["sudo"],
        flags: &["E", "preserve-env", "H", "set-home", "n", "non-interactive", "S", "stdin", "b", "background", "k", "A", "P", "B", "N", "i", "login", "s", "shell"],
        values: &["u", "user", "g", "group", "C", "close-from", "D", "chdir", "R", "chroot", "T", "command-timeout", "p", "prompt", "h", "host", "r", "t"],
        fate: OTHER_USER,
        ..USUAL
    },
    Wrapper { names: &["gosu", "su-exec", "setuser"], operands: 1, fate: OTHER_USER, ..USUAL },
];

/// The command behind a wrapper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behind {
    /// The wrapper, as a person says it: `conda run`.
    pub name: String,
    /// Where its command begins. Assignments before it are those of `env` and `sudo`.
    pub at: usize,
    /// What becomes of the wrapper, with the reason.
    pub fate: FateHere,
}

/// [`Fate`] of a wrapper with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FateHere {
    Kept,
    LeftOut(String),
    Lost(String),
}

/// What the words of a command are, as far as wrappers go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// They begin with no wrapper that is known.
    NoWrapper,
    Behind(Behind),
    /// A wrapper with this name has an option that is not known, so it is not known either where its
    /// command begins.
    Opaque {
        name: String,
        option: String,
    },
}

/// Looks at the first program of a command.
pub fn look(words: &[&str]) -> Seen {
    let Some(program) = words.first().map(|word| stem(word)) else {
        return Seen::NoWrapper;
    };
    let Some(wrapper) = TABLE.iter().find(|row| row.names.contains(&program)) else {
        return Seen::NoWrapper;
    };
    let name = match wrapper.verb {
        Some(verb) => format!("{program} {verb}"),
        None => program.to_owned(),
    };
    wrapper.read(name, words)
}

impl Wrapper {
    fn read(&'static self, name: String, words: &[&str]) -> Seen {
        let mut options = Options {
            wrapper: self,
            given: Vec::new(),
        };
        let mut at = 1;
        let mut verb = self.verb;
        while let Some(word) = words.get(at) {
            if *word == "--" && verb.is_none() {
                at += 1;
                break;
            }
            let is_option = word.len() > 1 || self.names.contains(&"env");
            if is_option && word.starts_with('-') {
                let Some(took) = options.take(word, words.get(at + 1).copied()) else {
                    return Seen::Opaque {
                        name,
                        option: (*word).to_owned(),
                    };
                };
                at += took;
            } else if let Some(wanted) = verb {
                if *word != wanted {
                    return Seen::NoWrapper;
                }
                verb = None;
                at += 1;
            } else {
                break;
            }
        }
        at += self.operands;
        let assigns = self.names.contains(&"env") || self.names.contains(&"sudo");
        while assigns && words.get(at).is_some_and(|word| is_assignment(word)) {
            at += 1;
        }
        // What has no command runs none.
        if verb.is_some() || at >= words.len() {
            return Seen::NoWrapper;
        }
        Seen::Behind(Behind {
            fate: options.fate(&name),
            name,
            at,
        })
    }
}

/// The options of one wrapper that a command gives.
struct Options {
    wrapper: &'static Wrapper,
    /// Without dashes, with the value if there is one.
    given: Vec<(String, String)>,
}

impl Options {
    /// Takes the option of a word. Returns how many words it has, or `None` if it is not known.
    fn take(&mut self, word: &str, next: Option<&str>) -> Option<usize> {
        let Wrapper { names, .. } = self.wrapper;
        let number = word.trim_start_matches('-').trim_start_matches(['+', '-']);
        if names.contains(&"nice")
            && !number.is_empty()
            && number.bytes().all(|b| b.is_ascii_digit())
        {
            return Some(1);
        }
        if let Some(long) = word.strip_prefix("--") {
            let (name, own) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (long, None),
            };
            let takes = self.long(name)?;
            return match (own, takes) {
                (Some(value), _) => self.give(name, value, 1),
                (None, true) => self.give(name, next?, 2),
                (None, false) => self.give(name, "", 1),
            };
        }
        // prlimit's limits and the values of one word.
        if names.contains(&"prlimit") {
            return word.contains('=').then_some(1);
        }
        let letters = match word.strip_prefix('-')? {
            // env's other name for -i.
            "" => "i",
            letters => letters,
        };
        for (at, letter) in letters.char_indices() {
            let name = letter.to_string();
            if self.wrapper.values.contains(&name.as_str()) {
                let rest = letters[at + letter.len_utf8()..].trim_start_matches('=');
                return match rest {
                    "" => self.give(&name, next?, 2),
                    rest => self.give(&name, rest, 1),
                };
            }
            if !self.wrapper.flags.contains(&name.as_str()) {
                return None;
            }
            self.give(&name, "", 1);
        }
        Some(1)
    }

    fn give(&mut self, name: &str, value: &str, took: usize) -> Option<usize> {
        self.given.push((name.to_owned(), value.to_owned()));
        Some(took)
    }

    /// Whether a long option takes a value. getopt takes the beginning of a name where only one option
    /// begins with it. `None`: it is not known.
    fn long(&self, name: &str) -> Option<bool> {
        let Wrapper {
            names,
            flags,
            values,
            ..
        } = self.wrapper;
        if name.len() > 1 && (values.contains(&name) || flags.contains(&name)) {
            return Some(values.contains(&name));
        }
        if names.contains(&"prlimit") {
            return Some(false);
        }
        let begins = |known: &&&str| known.len() > 1 && known.starts_with(name);
        let mut found = values.iter().filter(begins).map(|_| true);
        let mut flags = flags.iter().filter(begins).map(|_| false);
        match (found.next(), flags.next(), found.next().or(flags.next())) {
            (Some(takes), None, None) | (None, Some(takes), None) => Some(takes),
            _ => None,
        }
    }

    fn has(&self, names: &[&str]) -> bool {
        self.given
            .iter()
            .any(|(given, _)| names.contains(&given.as_str()))
    }

    fn fate(&self, name: &str) -> FateHere {
        let Wrapper { except, files, .. } = self.wrapper;
        let lost = |why: &str| FateHere::Lost(why.to_owned());
        let exception = self.given.iter().find_map(|(given, _)| {
            let (_, fate) = except.iter().find(|(option, _)| option == given)?;
            Some((given, *fate))
        });
        if let Some((option, Fate::Lost(why))) = exception {
            let dashes = if option.len() > 1 { "--" } else { "-" };
            return FateHere::Lost(format!("with {dashes}{option} {why}"));
        }
        match self.wrapper.fate {
            Fate::Lost(why) => return lost(why),
            Fate::LeftOut(why) => return FateHere::LeftOut(why.to_owned()),
            Fate::Kept => {}
        }
        let own = |value: &str| {
            ["%p", "%q{", "%h%p"]
                .iter()
                .any(|part| value.contains(part))
        };
        let separate = name == "strace"
            && (self.has(&["output-separately"])
                || self.given.iter().filter(|(given, _)| given == "f").count() > 1);
        let shared = self
            .given
            .iter()
            .find(|(given, value)| files.contains(&given.as_str()) && !own(value) && !separate);
        let each = match name.starts_with("n") {
            true => "give it a name of its own for each rank, as with %q{RANK}",
            false => "leave the file out, and it is in the log of each rank",
        };
        if let Some((_, file)) = shared {
            return FateHere::Lost(format!(
                "each rank would write the same file {file:?}; {each}"
            ));
        }
        match name {
            // It has a name of its own, which ranks would race for.
            "nsys profile" if !self.has(files) => FateHere::Lost(
                "it makes one report of all processes, and each rank would make one of that name; give each a name with -o NAME_%q{RANK}"
                    .to_owned(),
            ),
            "xvfb-run" if !self.has(&["a", "auto-servernum"]) => FateHere::Lost(
                "each rank would start an X server with the same number; add -a, with which each takes a free one"
                    .to_owned(),
            ),
            _ => FateHere::Kept,
        }
    }
}

/// `NAME=VALUE`
pub(super) fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// The name of a program without its folder.
pub(super) fn stem(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

#[cfg(test)]
mod tests;
