//! The value of a variable that is in a file of this node. The coordinator, its store and the
//! runner's records know the path only.

use std::path::Path;

use crate::folder;

/// The longest value. Linux takes 128 KiB for a variable with its name.
const VALUE_MAX: u64 = 64 << 10;

/// The content, without one line break at its end, which editors and `echo` write. The error says
/// why the file cannot be a value. It never waits for the other end of a pipe.
pub fn value(path: &Path) -> Result<String, String> {
    let value = folder::read_named(path, VALUE_MAX).map_err(|e| e.to_string())?;
    let value = String::from_utf8(value).map_err(|_| "is not UTF-8")?;
    if value.contains('\0') {
        return Err("has a NUL byte".into());
    }
    let text = value.strip_suffix('\n').unwrap_or(&value);
    Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_the_text_without_its_last_line_break() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let of = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            value(&path)
        };
        assert_eq!(of(b"s3cret\n").as_deref(), Ok("s3cret"));
        assert_eq!(of(b"s3cret\r\n").as_deref(), Ok("s3cret"));
        assert_eq!(of(b"two\nlines\n\n").as_deref(), Ok("two\nlines\n"));
        assert_eq!(of(b"").as_deref(), Ok(""));
        assert_eq!(of(b"a\0b").unwrap_err(), "has a NUL byte");
        assert!(of(b"\xff").unwrap_err().contains("UTF-8"));
        let long = vec![b'x'; (64 << 10) + 1];
        assert!(of(&long).unwrap_err().contains("more than"));
    }

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        for path in [pipe.as_path(), dir.path(), Path::new("/dev/zero")] {
            assert_eq!(value(path).unwrap_err(), "is not a regular file");
        }
    }
}
