//! An error and all its sources in one line, for a log.

use std::error::Error;

/// Does not repeat a source that the text already quotes, as in tonic's and NVML's errors.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}
