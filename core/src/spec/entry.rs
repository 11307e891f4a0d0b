//! What a job's `command` and `args` start: a script, a module or another program.

/// What a job's `command` and `args` ask torchrun to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// `python [options] script.py args`
    Script {
        python: String,
        options: Vec<String>,
        script: String,
        args: Vec<String>,
    },
    /// `python [options] -m module args`
    Module {
        python: String,
        options: Vec<String>,
        module: String,
        args: Vec<String>,
    },
    /// Any other program: torchrun's `--no-python`.
    Program { program: String, args: Vec<String> },
}

impl Entry {
    /// Reads `command` followed by `args`, as a shell would run them. The error is for the user,
    /// without the field's name.
    pub fn read(command: &[String], args: &[String]) -> Result<Entry, String> {
        let mut words = command.iter().chain(args).cloned();
        let program = match command.is_empty() {
            true => "python3".to_owned(),
            false => words.next().unwrap_or_default(),
        };
        if !is_python(&program) {
            return Ok(Entry::Program {
                program,
                args: words.collect(),
            });
        }
        let mut options = Vec::new();
        loop {
            let Some(word) = words.next() else {
                return Err("names no script after the interpreter's options".into());
            };
            match word.as_str() {
                "-c" => {
                    return Err(
                        "torchrun cannot run `python -c`; put the code into a script".into(),
                    );
                }
                "-" => {
                    return Err("a script cannot be read from standard input; give its path".into());
                }
                "-m" => {
                    let module = words.next().ok_or("-m names no module")?;
                    return Ok(Entry::Module {
                        python: program,
                        options,
                        module,
                        args: words.collect(),
                    });
                }
                // These options of the interpreter take a value.
                "-W" | "-X" | "--check-hash-based-pycs" => {
                    let value = words.next().ok_or_else(|| format!("{word} has no value"))?;
                    options.extend([word, value]);
                }
                option if option.starts_with('-') => options.push(word),
                _ => {
                    return Ok(Entry::Script {
                        python: program,
                        options,
                        script: word,
                        args: words.collect(),
                    });
                }
            }
        }
    }
}

/// `python`, `python3`, `/opt/env/bin/python3.11`, `pypy3`.
pub fn is_python(program: &str) -> bool {
    let name = program.rsplit('/').next().unwrap_or(program);
    ["python", "pypy"].iter().any(|stem| {
        name.strip_prefix(stem)
            .is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn reads_what_users_write() {
        let script = Entry::read(&words("python3 -u"), &words("train.py --epochs 3")).unwrap();
        let args = words("--epochs 3");
        assert_eq!(
            script,
            Entry::Script {
                python: "python3".into(),
                options: words("-u"),
                script: "train.py".into(),
                args
            }
        );
        let module = Entry::read(
            &words("/opt/bin/python3.11"),
            &words("-X dev -m pkg.train -v"),
        )
        .unwrap();
        let (python, options) = ("/opt/bin/python3.11".to_owned(), words("-X dev"));
        assert_eq!(
            module,
            Entry::Module {
                python,
                options,
                module: "pkg.train".into(),
                args: words("-v")
            }
        );
        let program = Entry::read(&words("./train"), &words("x")).unwrap();
        assert_eq!(
            program,
            Entry::Program {
                program: "./train".into(),
                args: words("x")
            }
        );
        assert!(Entry::read(&words("python"), &words("-c pass")).is_err());
        assert!(Entry::read(&words("python"), &words("-u")).is_err());
        assert!(matches!(
            Entry::read(&words("python3-config"), &[]).unwrap(),
            Entry::Program { .. }
        ));
    }
}
