//! A daemon as a service of systemd: its user, its folders, its unit and its settings, from one command
//! that may be given again.
//!
//! | file | owns |
//! |---|---|
//! | `daemon` | the names and templates of the two services |
//! | `settings` | variables in a file such as `/etc/muster/agent.env` |
//! | `flags` | flags of a daemon as such variables |
//! | `unit` | the unit's text |
//! | `found` | what is there, as values |
//! | `plan` | what is to be done so that a service is as wanted |
//! | `removal` | what is to be done so that it is gone |
//! | `step` | one thing to do, and how it is told |
//! | `machine` | looks, and does the steps: files, systemctl, systemd-sysusers |
//! | `carry_out` | the command line of it; step after step |
//!
//! Everything but the last two is pure. What a daemon needs before its first start, such as a certificate,
//! is its own command, run as the service's user.
#![forbid(unsafe_code)]

mod carry_out;
mod daemon;
mod flags;
mod found;
mod machine;
mod plan;
mod removal;
mod settings;
mod step;
mod unit;

pub use carry_out::{ServiceFlags, carry_out};
pub use daemon::Daemon;
pub use flags::settings_of;
pub use found::{Found, Held, Owned, Running, UnitState, User};
pub use machine::{Failure, Machine};
pub use plan::{Refusal, Wanted, install};
pub use removal::{Removal, remove};
pub use settings::Setting;
pub use step::{Because, Step, told};
