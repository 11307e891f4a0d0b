//! What is wrong with a document, each mistake with its path. All are found at once.

use std::{fmt, time::Duration};

use crate::period;

/// One mistake in a document: its path, as `spec.minReplicas` or `spec.env[2].name`, and what is
/// wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    pub path: String,
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

#[derive(Default)]
pub(super) struct Errors(pub(super) Vec<FieldError>);

impl Errors {
    pub(super) fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(FieldError {
            path: path.into(),
            message: message.into(),
        });
    }

    /// Checks that a number is within bounds. Returns the low bound in place of a wrong number, so
    /// that checking can go on.
    pub(super) fn number(&mut self, path: &str, value: i64, low: i64, high: i64) -> i64 {
        if (low..=high).contains(&value) {
            value
        } else {
            self.add(
                path,
                format!("is {value}, must be between {low} and {high}"),
            );
            low
        }
    }

    pub(super) fn one_of<T: Copy + Default>(
        &mut self,
        path: &str,
        text: Option<&str>,
        choices: &[(&str, T)],
    ) -> T {
        let Some(text) = text else {
            return T::default();
        };
        let found = choices.iter().find(|(name, _)| *name == text);
        if found.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            self.add(
                path,
                format!("is {text:?}, must be one of {}", names.join(", ")),
            );
        }
        found.map_or_else(T::default, |(_, value)| *value)
    }

    pub(super) fn period(
        &mut self,
        path: &str,
        text: Option<&str>,
        default: Duration,
        low: Duration,
        high: Duration,
    ) -> Duration {
        let Some(text) = text else { return default };
        match period::parse(text) {
            Ok(value) if value < low || value > high => {
                self.add(
                    path,
                    format!(
                        "is {text}, must be between {} and {}",
                        period::format(low),
                        period::format(high)
                    ),
                );
                default
            }
            Ok(value) => value,
            Err(message) => {
                self.add(path, message);
                default
            }
        }
    }
}
