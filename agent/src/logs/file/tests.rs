use std::{fs, io::Write};

use super::*;

fn log() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rank-0.log");
    (dir, path)
}

async fn all(log: &mut RunLog) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        let more = log.next_lines().await.unwrap();
        if more.lines.is_empty() {
            return lines;
        }
        lines.extend(more.lines.into_iter().map(text));
    }
}

fn text(line: Vec<u8>) -> String {
    String::from_utf8_lossy(&line).into_owned()
}

/// Rotates the log as the runner does.
fn rotate(path: &Path, start: &mut u64) {
    let end = *start + fs::metadata(path).unwrap().len();
    fs::rename(
        path,
        path.with_file_name(record::rotated_log("rank-0.log", end)),
    )
    .unwrap();
    let _ = fs::remove_file(path.with_file_name(record::rotated_log("rank-0.log", *start)));
    *start = end;
}

fn append(path: &Path, text: &str) {
    fs::File::options()
        .append(true)
        .create(true)
        .open(path)
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
}

async fn last(path: &Path, tail: u32) -> Vec<String> {
    let mut log = RunLog::new(path.to_owned());
    log.seek_tail(tail).await.unwrap();
    all(&mut log).await
}

#[tokio::test]
async fn the_last_lines_are_found_over_both_halves() {
    let (_dir, path) = log();
    fs::write(path.with_file_name("rank-0.log.6"), "a\nb\nc\n").unwrap();
    fs::write(&path, "d\ne\n").unwrap();
    for (tail, lines) in [
        (0, ""),
        (1, "e"),
        (2, "de"),
        (3, "cde"),
        (5, "abcde"),
        (99, "abcde"),
    ] {
        assert_eq!(last(&path, tail).await.concat(), lines, "tail {tail}");
    }
    assert_eq!(all(&mut RunLog::new(path.clone())).await.concat(), "abcde");
    // Rename it as older runners did, which did not know where a part ends.
    fs::rename(
        path.with_file_name("rank-0.log.6"),
        path.with_file_name("rank-0.log.1"),
    )
    .unwrap();
    assert_eq!(all(&mut RunLog::new(path.clone())).await.concat(), "abcde");
}

#[tokio::test]
async fn long_files_are_searched_block_by_block() {
    let (_dir, path) = log();
    let lines: Vec<String> = (0..5_000)
        .map(|i| format!("{i} {}", "x".repeat(i % 97)))
        .collect();
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    assert_eq!(last(&path, 4_321).await, lines[5_000 - 4_321..]);
    assert_eq!(last(&path, 5_000).await, lines);
}

/// A progress bar is a line with many pieces.
#[tokio::test]
async fn the_last_lines_are_whole_ones() {
    let (_dir, path) = log();
    let cri = |tag: &str, text: &str| format!("{:030} stdout {tag} {text}\n", 1);
    let parts = [
        cri("F", "a"),
        cri("P", "b"),
        cri("P", "b"),
        cri("F", "b"),
        cri("F", "c"),
        cri("P", "d"),
        cri("P", "d"),
    ];
    let split = parts[..3].concat();
    fs::write(
        path.with_file_name(record::rotated_log("rank-0.log", split.len() as u64)),
        &split,
    )
    .unwrap();
    fs::write(&path, parts[3..].concat()).unwrap();
    for (tail, pieces) in [(0, 0), (1, 2), (2, 3), (3, 6), (4, 7), (9, 7)] {
        let parts: Vec<&str> = parts[7 - pieces..]
            .iter()
            .map(|line| line.trim_end())
            .collect();
        assert_eq!(last(&path, tail).await, parts, "tail {tail}");
    }
}

/// A rank can put anything into the folder of its log.
#[tokio::test]
async fn what_is_no_log_is_refused_and_never_waited_for() {
    let (dir, path) = log();
    let secret = dir.path().join("token");
    fs::write(&secret, "a secret\n").unwrap();
    let part = dir.path().join("rank-0.log.41");
    fs::write(&path, "seen\n").unwrap();
    let link = |place: &Path| std::os::unix::fs::symlink(&secret, place).unwrap();
    let fifo = |place: &Path| {
        rustix::fs::mkfifoat(rustix::fs::CWD, place, rustix::fs::Mode::RWXU).unwrap();
    };
    for (is_link, why) in [(true, "it is a link"), (false, "is not a regular file")] {
        let put = |place: &Path| if is_link { link(place) } else { fifo(place) };
        put(&part);
        let lines = RunLog::new(path.clone()).next_lines().await.unwrap();
        assert_eq!((lines.lines, lines.lost), (vec![b"seen".to_vec()], 41));
        let mut log = RunLog::new(path.clone());
        log.seek_tail(9).await.unwrap();
        assert_eq!(all(&mut log).await, ["seen"]);
        fs::remove_file(&part).unwrap();
        fs::remove_file(&path).unwrap();
        put(&path);
        let mut log = RunLog::new(path.clone());
        assert_eq!(log.next_lines().await.unwrap_err().to_string(), why);
        assert_eq!(log.seek_tail(1).await.unwrap_err().to_string(), why);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "seen\n").unwrap();
    }
    // 100 GB that take nothing on the disk.
    let huge = fs::File::create(&path).unwrap();
    huge.set_len(100 << 30).unwrap();
    let error = RunLog::new(path.clone()).seek_tail(1).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "has more than 1073741824 bytes, so it is no log"
    );
    // A log that becomes a link while it is read.
    fs::write(&path, "one\n").unwrap();
    let mut log = RunLog::new(path.clone());
    assert_eq!(all(&mut log).await, ["one"]);
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&secret, &path).unwrap();
    let mut told = String::new();
    while told.is_empty() {
        match log.next_lines().await {
            Ok(lines) => assert_eq!(lines.lines, Vec::<Vec<u8>>::new()),
            Err(e) => told = e.to_string(),
        }
    }
    assert_eq!(told, "it is a link");
}

#[tokio::test]
async fn a_folder_that_a_rank_has_filled_costs_little() {
    let (dir, path) = log();
    fs::write(&path, "newest\n").unwrap();
    // No number is left for what comes after it.
    fs::write(dir.path().join(format!("rank-0.log.{}", u64::MAX)), "x\n").unwrap();
    for end in 1..=100 {
        fs::write(dir.path().join(format!("rank-0.log.{end}")), "").unwrap();
    }
    let log_of = || RunLog::new(path.clone());
    assert_eq!(all(&mut log_of()).await, ["newest"]);
    assert_eq!(log_of().parts().await.unwrap().len(), PARTS_MAX + 1);
    for file in 0..FILES_MAX {
        fs::hard_link(&path, dir.path().join(file.to_string())).unwrap();
    }
    let error = log_of().next_lines().await.unwrap_err().to_string();
    assert_eq!(error, "has more than 10000 entries");
}

#[tokio::test]
async fn follows_over_a_rotation_and_keeps_torn_lines_back() {
    let (_dir, path) = log();
    let mut log = RunLog::new(path.clone());
    log.seek_tail(10).await.unwrap();
    assert_eq!(all(&mut log).await, Vec::<String>::new());
    let (mut start, mut file) = (0, fs::File::create(&path).unwrap());
    file.write_all(b"one\ntw").unwrap();
    assert_eq!(all(&mut log).await, ["one"]);
    file.write_all(b"o\nthree\n").unwrap();
    rotate(&path, &mut start);
    assert_eq!(all(&mut log).await, ["two", "three"]);
    fs::write(&path, "four\n").unwrap();
    assert_eq!(all(&mut log).await, ["four"]);
    assert_eq!(log.at(), 19);
}

/// A part may be removed after its name was read. The next part then begins where it ended, and
/// its bytes are lost.
#[tokio::test]
async fn a_part_that_is_removed_while_it_is_looked_for_is_told_as_lost() {
    let (dir, path) = log();
    std::os::unix::fs::symlink(
        dir.path().join("nowhere"),
        path.with_file_name("rank-0.log.8"),
    )
    .unwrap();
    fs::write(&path, "0000001\n").unwrap();
    let lines = RunLog::new(path).next_lines().await.unwrap();
    assert_eq!(
        lines,
        Lines {
            lines: vec![b"0000001".to_vec()],
            at: 16,
            lost: 8
        }
    );
}

/// A rotation may come between any two looks of a reader. The reader then gets everything, or
/// is told the exact number of lost bytes.
#[tokio::test]
async fn a_reader_beside_a_writer_that_rotates_all_the_time_misses_nothing_unsaid() {
    let (_dir, path) = log();
    let writer = std::thread::spawn({
        let path = path.clone();
        move || {
            let mut start = 0;
            for number in 0..40_000 {
                append(&path, &format!("{number:07}\n"));
                if number % 40 == 39 {
                    rotate(&path, &mut start);
                }
            }
        }
    });
    let mut log = RunLog::new(path.clone());
    let (mut next, mut at) = (0, 0);
    loop {
        let over = writer.is_finished();
        let lines = log.next_lines().await.unwrap();
        next += lines.lost / 8;
        for line in &lines.lines {
            assert_eq!(text(line.clone()).parse::<u64>().unwrap(), next);
            next += 1;
        }
        at += lines.lost + 8 * lines.lines.len() as u64;
        assert_eq!(lines.at, at);
        if over && lines.lines.is_empty() && lines.lost == 0 {
            break;
        }
    }
    assert_eq!(next, 40_000);
    writer.join().unwrap();
}

#[tokio::test]
async fn who_falls_behind_skips_no_more_than_was_overwritten_and_is_told_how_much() {
    let (_dir, path) = log();
    let mut start = 0;
    let mut slow = RunLog::new(path.clone());
    for n in 0..5 {
        append(&path, &format!("{n}a\n{n}b\n"));
        if n == 0 {
            assert_eq!(slow.next_lines().await.unwrap().lines, [b"0a", b"0b"]);
        }
        if n < 4 {
            rotate(&path, &mut start);
        }
    }
    // The runner keeps bytes 18 to 30 of 0 to 30.
    let late = Lines {
        lines: vec![b"3a".to_vec(), b"3b".to_vec()],
        at: 24,
        lost: 12,
    };
    assert_eq!(slow.next_lines().await.unwrap(), late);
    assert_eq!(
        slow.next_lines().await.unwrap(),
        Lines {
            lines: vec![b"4a".to_vec(), b"4b".to_vec()],
            at: 30,
            lost: 0
        }
    );

    for (from, lost, text) in [
        (0, 18, "3a"),
        (6, 12, "3a"),
        (18, 0, "3a"),
        (21, 0, "3b"),
        (24, 0, "4a"),
        (27, 0, "4b"),
    ] {
        let mut again = RunLog::new(path.clone());
        again.seek(from);
        let lines = again.next_lines().await.unwrap();
        assert_eq!(
            (lines.lost, &lines.lines[0][..]),
            (lost, text.as_bytes()),
            "from {from}"
        );
    }
    let mut end = RunLog::new(path.clone());
    end.seek(30);
    assert_eq!(
        end.next_lines().await.unwrap(),
        Lines {
            lines: Vec::new(),
            at: 30,
            lost: 0
        }
    );
    append(&path, "5a\n");
    assert_eq!(all(&mut end).await, ["5a"]);
}

/// A rank's output has no checksum. A damaged log is shown as it is, without invented bytes and
/// at most one chunk at a time.
#[tokio::test]
async fn garbage_is_shown_in_pieces_and_a_cut_shows_what_is_left() {
    let (_dir, path) = log();
    fs::write(&path, vec![0xff; 5 * CHUNK + 7]).unwrap();
    let mut log = RunLog::new(path.clone());
    let pieces = all(&mut log).await;
    assert!(
        pieces.len() == 5 && pieces.iter().all(|piece| piece.chars().count() == CHUNK),
        "{} pieces",
        pieces.len()
    );

    let text: String = (0..50).map(|i| format!("line {i}\n")).collect();
    for cut in 0..text.len() {
        fs::write(&path, &text[..cut]).unwrap();
        let whole = text[..cut].matches('\n').count();
        let mut log = RunLog::new(path.clone());
        assert_eq!(all(&mut log).await.len(), whole, "cut at {cut}");
        assert!(last(&path, 3).await.len() <= 3, "cut at {cut}");
    }
    for at in 0..text.len() {
        let mut flipped = text.clone().into_bytes();
        flipped[at] ^= 1 << (at % 8);
        fs::write(&path, &flipped).unwrap();
        let lines = last(&path, 99).await;
        assert!(
            (49..=51).contains(&lines.len()),
            "byte {at} flipped: {} lines",
            lines.len()
        );
    }
}
