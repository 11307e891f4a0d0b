//! One call, from its admission to its answer.

use std::sync::{Arc, OnceLock};

use muster_rpc::{Caller, gate};
use tonic::{Code, Status};

use super::{
    Trail,
    entry::{Entry, Outcome},
};

/// What a handler notes about its call as soon as it has read it. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Note(Arc<Noted>);

#[derive(Debug, Default)]
struct Noted {
    object: OnceLock<String>,
    what: OnceLock<&'static str>,
}

impl Note {
    /// Which job, node, user or host the call is about. The first one counts.
    pub(crate) fn set_object(&self, object: String) {
        let _ = self.0.object.set(object);
    }

    pub(crate) fn object(&self) -> String {
        self.0.object.get().cloned().unwrap_or_default()
    }

    /// What the call does, if its method alone does not say it.
    pub(crate) fn set_what(&self, what: &'static str) {
        let _ = self.0.what.set(what);
    }
}

/// A call that was admitted. It becomes an entry when it is answered, or when its caller leaves
/// before.
#[derive(Debug)]
pub(crate) struct Call {
    trail: Trail,
    caller: Caller,
    what: &'static str,
    /// It gets an entry in any case, not only if it is denied.
    always: bool,
    note: Note,
    /// What it was answered with. A caller that has left got none; the call may have had its effect.
    code: Code,
    /// Why it was not answered as asked.
    why: String,
}

impl Trail {
    /// A call that was admitted.
    pub(crate) fn begin(
        &self,
        caller: &Caller,
        what: &'static str,
        always: bool,
        note: &Note,
    ) -> Call {
        Call {
            trail: self.clone(),
            caller: caller.clone(),
            what,
            always,
            note: note.clone(),
            code: Code::Cancelled,
            why: String::new(),
        }
    }

    /// A call that was refused.
    pub(crate) fn refused(&self, caller: &Caller, what: &str, object: String, status: &Status) {
        let entry = entry(caller, what, object, status.code());
        self.record(entry.because(status.message()));
    }
}

impl gate::Call for Call {
    fn answered(mut self, failure: Option<&Status>) {
        self.code = failure.map_or(Code::Ok, Status::code);
        self.why = failure.map_or_else(String::new, |status| status.message().to_owned());
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let noted = &self.note.0;
        let what = noted.what.get().unwrap_or(&self.what);
        let object = self.note.object();
        let entry = entry(&self.caller, what, object, self.code).because(&self.why);
        if self.always || entry.result == Outcome::Denied {
            self.trail.record(entry);
        }
    }
}

fn entry(caller: &Caller, what: &str, object: String, code: Code) -> Entry {
    let who = caller.identity().to_string();
    Entry::of_call(who, caller.address().to_string(), what, object, code)
}
