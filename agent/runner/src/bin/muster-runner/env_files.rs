//! Variables whose values stand in files of this node: a coordinator, its store and this runner's
//! own records know the path, and only the ranks get the value.

use std::{fs::File, io::Read, path::Path};

use muster_runner::wire::StartSpec;

/// The longest value. Linux takes no longer one (`MAX_ARG_STRLEN`).
const VALUE_MAX: u64 = 128 << 10;

/// The spec with the values of these files in its environment.
pub(crate) fn with_values(spec: &StartSpec) -> Result<StartSpec, String> {
    let mut spec = spec.clone();
    for (name, path) in &spec.env_files {
        let value = read(Path::new(path)).map_err(|why| format!("env {name}: {path}: {why}"))?;
        spec.env.insert(name.clone(), value);
    }
    Ok(spec)
}

/// The content without the line break at its end, which editors and `echo` write.
fn read(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|e| e.to_string())?;
    let mut value = String::new();
    file.take(VALUE_MAX + 1)
        .read_to_string(&mut value)
        .map_err(|e| e.to_string())?;
    if value.len() as u64 > VALUE_MAX {
        return Err(format!("has more than {VALUE_MAX} bytes"));
    }
    if value.contains('\0') {
        return Err("has a NUL byte".into());
    }
    if value.ends_with('\n') {
        value.pop();
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn a_value_is_the_text_without_its_last_line_break() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let of = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            read(&path)
        };
        assert_eq!(of(b"s3cret\n").as_deref(), Ok("s3cret"));
        assert_eq!(of(b"two\nlines\n\n").as_deref(), Ok("two\nlines\n"));
        assert_eq!(of(b"").as_deref(), Ok(""));
        assert_eq!(of(b"a\0b").unwrap_err(), "has a NUL byte");
        assert!(of(b"\xff").unwrap_err().contains("UTF-8"));
        assert!(
            of(&[b'x'; (128 << 10) + 1])
                .unwrap_err()
                .contains("more than")
        );
        assert!(read(dir.path()).is_err());
    }
}
