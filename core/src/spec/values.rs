//! Checks of the values that a job and a role have in common: sizes, what is run, variables, where it
//! starts.

use std::collections::BTreeMap;

use crate::container;

use super::{
    EnvVar, Framework, Multiple,
    entry::{self, is_python},
    errors::Errors,
    limits::{ARG_BYTES_MAX, ARGS_BYTES_MAX, ARGS_MAX, ENV_BYTES_MAX, ENV_MAX, NODES_MAX},
    variables::{check_value_from, env_error},
};
use crate::id::label_error;

impl Errors {
    /// Checks the three sizes of a job or role: wanted, at least, at most. `lowest` is the least that
    /// each may be. With them goes the number of which they are multiples.
    pub(super) fn sizes(
        &mut self,
        at: &str,
        [replicas, min, max]: [Option<i64>; 3],
        multiple_of: Option<i64>,
        lowest: i64,
    ) -> ((u32, u32, u32), Multiple) {
        let said = (min.is_some(), max.is_some());
        let path = at;
        let at = |field: &str| format!("{at}.{field}");
        let replicas = self.number(&at("replicas"), replicas.unwrap_or(1), lowest, NODES_MAX);
        let min = self.number(
            &at("minReplicas"),
            min.unwrap_or(replicas),
            lowest,
            NODES_MAX,
        );
        let max = self.number(
            &at("maxReplicas"),
            max.unwrap_or(replicas.max(min)),
            lowest,
            NODES_MAX,
        );
        if min > max {
            self.add(
                at("minReplicas"),
                format!("is {min}, must not be more than maxReplicas, which is {max}"),
            );
        } else if replicas < min {
            self.add(
                at("replicas"),
                format!("is {replicas}, must not be less than minReplicas, which is {min}"),
            );
        } else if replicas > max {
            self.add(
                at("replicas"),
                format!("is {replicas}, must not be more than maxReplicas, which is {max}"),
            );
        }
        let sizes = (replicas as u32, min as u32, max as u32);
        let said = [
            ("replicas", Some(sizes.0)),
            ("minReplicas", said.0.then_some(sizes.1)),
            ("maxReplicas", said.1.then_some(sizes.2)),
        ];
        let multiple = self.multiple(path, multiple_of, said, lowest);
        (sizes, multiple)
    }

    /// Checks what a job or role runs.
    pub(super) fn command(
        &mut self,
        at: &str,
        command: &[String],
        args: &[String],
        framework: Framework,
    ) {
        let mut bytes = 0;
        for (field, list) in [("command", command), ("args", args)] {
            if list.len() > ARGS_MAX {
                self.add(
                    format!("{at}.{field}"),
                    format!("has {} items, at most {ARGS_MAX} are allowed", list.len()),
                );
            }
            for (i, item) in list.iter().enumerate() {
                bytes += item.len();
                let path = || format!("{at}.{field}[{i}]");
                if item.len() > ARG_BYTES_MAX {
                    self.add(
                        path(),
                        format!(
                            "is {} bytes long, at most {ARG_BYTES_MAX} are allowed",
                            item.len()
                        ),
                    );
                } else if item.contains('\0') {
                    self.add(path(), "has a NUL byte");
                } else if field == "command" && item.is_empty() {
                    self.add(path(), "must not be empty");
                }
            }
        }
        if bytes > ARGS_BYTES_MAX {
            self
                .add(format!("{at}.args"), format!("command and args are {bytes} bytes long in all, at most {ARGS_BYTES_MAX} are allowed"));
        }
        // Only an interpreter needs to be told what to run; a program is whole by itself.
        if command.first().is_some_and(|word| !is_python(word)) {
            return;
        }
        if args.is_empty() && command.len() < 2 {
            let path = format!("{at}.args");
            self.add(path, "names no script: give for example [train.py, --epochs, \"10\"] or [-m, package.module]");
        } else if framework.is_torch()
            && let Err(message) = entry::Entry::read(command, args)
        {
            self.add(format!("{at}.args"), message);
        }
    }

    /// Checks the variables of a job or role.
    pub(super) fn env(&mut self, at: &str, env: &[EnvVar]) {
        if env.len() > ENV_MAX {
            self.add(
                format!("{at}.env"),
                format!("has {} variables, at most {ENV_MAX} are allowed", env.len()),
            );
        }
        let mut seen = BTreeMap::new();
        let mut bytes = 0;
        for (i, var) in env.iter().enumerate() {
            bytes += var.name.len() + var.value.len();
            if let Some(from) = &var.value_from {
                bytes += from.file.len();
                check_value_from(at, i, var, &from.file, self);
            }
            let path = format!("{at}.env[{i}].name");
            if let Some(message) = env_error(&var.name, &var.value) {
                self.add(path, message);
            } else if let Some(first) = seen.insert(&var.name, i) {
                self.add(
                    path,
                    format!("{} is set already by {at}.env[{first}]", var.name),
                );
            }
            if var.value.contains('\0') {
                self.add(format!("{at}.env[{i}].value"), "has a NUL byte");
            }
        }
        if bytes > ENV_BYTES_MAX {
            self.add(
                format!("{at}.env"),
                format!("is {bytes} bytes long in all, at most {ENV_BYTES_MAX} are allowed"),
            );
        }
    }

    /// Checks the name of something that the operator has made.
    pub(super) fn made_name(&mut self, path: &str, name: Option<&str>) {
        if let Some(why) = name.and_then(label_error) {
            self.add(path, why);
        }
    }

    /// Checks where ranks start.
    pub(super) fn directory(&mut self, at: &str, directory: Option<&str>) {
        if let Some(dir) = directory
            && !dir.starts_with('/')
        {
            self.add(
                format!("{at}.workingDir"),
                format!("is {dir:?}, must be an absolute path: it is opened on the nodes"),
            );
        }
    }

    /// Checks the image in which ranks run.
    pub(super) fn image(&mut self, image: Option<&str>) {
        if let Some(why) = image.and_then(container::image_error) {
            self.add("spec.image", why);
        }
    }
}
