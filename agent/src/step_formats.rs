//! The operator's own formats of steps: a file that is checked once, when the agent starts.

use std::{fs, path::Path};

use muster_steps::Formats;

/// More bytes than anybody writes. Every run's description carries them.
const BYTES_MAX: usize = 64 << 10;

/// The text of the file, if one is given.
pub(crate) fn given(path: Option<&Path>) -> Result<Option<String>, String> {
    path.map(read).transpose()
}

/// The text of the file. The error names the file and the line.
fn read(path: &Path) -> Result<String, String> {
    let refuse = |message: String| format!("{}: {message}", path.display());
    let text = fs::read_to_string(path).map_err(|e| refuse(e.to_string()))?;
    if text.len() > BYTES_MAX {
        return Err(refuse(format!("more than {BYTES_MAX} bytes")));
    }
    Formats::with(&text).map_err(|e| refuse(e.to_string()))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_file_is_refused_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("formats.txt");
        fs::write(&path, "ours  tick {step}\n").unwrap();
        assert_eq!(read(&path).as_deref(), Ok("ours  tick {step}\n"));
        fs::write(&path, "# mine\nours  tick {place}\n").unwrap();
        let error = read(&path).unwrap_err();
        assert!(
            error.contains("formats.txt: line 2: {place} is none of"),
            "{error}"
        );
    }
}
