//! The stacks that CPython's `faulthandler` writes.

use serde::{Deserialize, Serialize};

/// The most threads of one rank that are kept. The main thread is always among them.
pub const THREADS_MAX: usize = 16;
/// CPython writes 100 frames of a thread at most.
const FRAMES_MAX: usize = 100;
/// The most bytes of names of one rank: 400 frames of 160 bytes. The main thread comes first, and the
/// innermost calls of each.
const STACKS_MAX: usize = 64 << 10;
/// CPython cuts names at 500 characters and writes others than ASCII as escapes.
const TEXT_MAX: usize = 512;

/// One call of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    pub file: String,
    pub line: u32,
    pub function: String,
}

/// One thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// The innermost call first.
    pub frames: Vec<Frame>,
}

/// The threads with Python frames in a text of `faulthandler`, the main thread first.
///
/// CPython writes the newest thread first, so the main thread is the last. Above 100 threads it leaves the
/// rest out, with the main thread; there is no telling then which one is the main thread, so there is none.
pub fn threads(text: &str) -> Vec<Thread> {
    let mut found: Vec<Thread> = Vec::new();
    let mut cut = false;
    for line in text.lines() {
        if line.starts_with("Thread 0x") || line.starts_with("Current thread 0x") {
            found.push(Thread { frames: Vec::new() });
        } else if line.starts_with("...") {
            cut = true;
        } else if let (Some(thread), Some(frame)) = (found.last_mut(), frame(line))
            && thread.frames.len() < FRAMES_MAX
        {
            thread.frames.push(frame);
        }
    }
    if cut {
        return Vec::new();
    }
    found.reverse();
    found.retain(|thread| !thread.frames.is_empty());
    found.truncate(THREADS_MAX);
    let mut left = STACKS_MAX;
    for thread in &mut found {
        let fits = |frame: &Frame| {
            left = left.saturating_sub(frame.file.len() + frame.function.len() + 16);
            left > 0
        };
        let kept = thread
            .frames
            .iter()
            .map(fits)
            .take_while(|fits| *fits)
            .count();
        thread.frames.truncate(kept);
    }
    found.retain(|thread| !thread.frames.is_empty());
    found
}

/// `  File "train.py", line 41 in load_batch`. A name may hold any character but a line break.
fn frame(line: &str) -> Option<Frame> {
    let rest = line.trim_start().strip_prefix("File ")?;
    let (file, rest) = match rest.strip_prefix('"') {
        Some(quoted) => quoted.rsplit_once("\", line ")?,
        // `File ???, line 3 in f`: the name is not known.
        None => rest.rsplit_once(", line ")?,
    };
    let (line, function) = rest.split_once(" in ")?;
    Some(Frame {
        file: short(file),
        line: line.parse().unwrap_or(0),
        function: short(function),
    })
}

fn short(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(file: &str, line: u32, function: &str) -> Frame {
        Frame {
            file: file.into(),
            line,
            function: function.into(),
        }
    }

    #[test]
    fn the_main_thread_of_a_recorded_answer_comes_first() {
        let threads = threads(include_str!("../tests/recorded/nccl-2.11-stacks.txt"));
        // The server's own thread has no Python frame.
        assert_eq!(threads.len(), 2);
        assert_eq!(
            threads[0].frames,
            [
                frame(
                    "/venv/lib/python3.12/site-packages/torch/cuda/__init__.py",
                    1162,
                    "synchronize"
                ),
                frame("/train/capture.py", 34, "<module>"),
            ]
        );
        assert_eq!(threads[1].frames.len(), 10);
        assert_eq!(threads[1].frames[0].function, "select");
    }

    #[test]
    fn odd_names_are_kept_as_they_are() {
        let text = "Thread 0x1 (most recent call first):\n  File \"a\", line 3 in b.py\", line 41 in <lambda> in x\n  File ???, line ??? in f\n  nonsense\n";
        assert_eq!(
            threads(text)[0].frames,
            [
                frame("a\", line 3 in b.py", 41, "<lambda> in x"),
                frame("???", 0, "f"),
            ]
        );
    }

    #[test]
    fn a_list_without_its_main_thread_is_no_list() {
        let mut text = String::new();
        for at in 0..100 {
            text += &format!(
                "Thread 0x{at:x} (most recent call first):\n  File \"a\", line 1 in f\n\n"
            );
        }
        let many = threads(&text);
        assert_eq!(many.len(), THREADS_MAX);
        assert_eq!(threads(&(text + "...\n")), []);
    }

    #[test]
    fn long_stacks_are_cut_at_their_outer_calls() {
        let name = "n".repeat(500);
        let mut text = String::from("Thread 0x1 (most recent call first):\n");
        for line in 0..100 {
            text += &format!("  File \"{name}\", line {line} in {name}\n");
        }
        let kept = &threads(&format!("{text}\n{text}"))[..];
        assert_eq!(kept.len(), 1, "the main thread");
        assert!(kept[0].frames.len() > 50 && kept[0].frames[0].line == 0);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read(text: String) {
            let _ = threads(&text);
        }
    }
}
