//! One file per command: its flags, its help, and what it does.

pub(crate) mod access;
pub(crate) mod audit;
pub(crate) mod cancel;
pub(crate) mod completion;
pub(crate) mod config;
pub(crate) mod convert;
pub(crate) mod cordon;
pub(crate) mod delete;
pub(crate) mod describe;
pub(crate) mod explain;
pub(crate) mod follow;
pub(crate) mod get;
pub(crate) mod login;
pub(crate) mod logs;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod scale;
pub(crate) mod several;
pub(crate) mod signal;
pub(crate) mod submit;
pub(crate) mod suspend;
pub(crate) mod target;
pub(crate) mod topology;
pub(crate) mod validate;
pub(crate) mod version;
pub(crate) mod wait;
