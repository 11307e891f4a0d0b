//! Runs all targets over their seeds, the committed corpus, and mutations of both, for a bounded
//! time.
//!
//! `MUSTER_FUZZ_SECONDS` (per target) makes the run longer, and `MUSTER_FUZZ_SEED` changes it. A
//! failure prints the input.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    time::{Duration, Instant},
};

use muster_damage::{
    mutate::{Dice, mutate},
    targets::{ALL, Target},
};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The time per target. All sixteen together take less than a quarter of a minute.
fn time() -> Duration {
    number("MUSTER_FUZZ_SECONDS").map_or(Duration::from_millis(900), Duration::from_secs)
}

/// Kept inputs: earlier finds, and inputs that reach deep into a decoder.
fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target.name);
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files
        .map(|file| fs::read(file.path()).expect("a file of the corpus can be read"))
        .collect()
}

fn try_one(target: &Target, input: &[u8]) {
    let began = Instant::now();
    if catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err() {
        panic!(
            "{}: does not keep its word for b\"{}\"",
            target.name,
            input.escape_ascii()
        );
    }
    // This is a debug build on a busy machine. An error here is quadratic, and takes minutes.
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{}: takes {:?} for {} bytes",
        target.name,
        began.elapsed(),
        input.len()
    );
}

#[test]
fn every_decoder_keeps_its_word() {
    for target in &ALL {
        let mut inputs = (target.seeds)();
        assert!(!inputs.is_empty());
        inputs.extend(corpus(target));
        inputs.iter().for_each(|input| try_one(target, input));
        // It tries every cut of every input first, and then mutations.
        for input in inputs.iter().filter(|input| input.len() < 4_096) {
            (0..input.len()).for_each(|cut| try_one(target, &input[..cut]));
        }
        let mut dice = Dice::new(number("MUSTER_FUZZ_SEED").unwrap_or(0x5EED));
        let (until, mut tried) = (Instant::now() + time(), 0_u64);
        while Instant::now() < until {
            for _ in 0..16 {
                let base = dice.below(inputs.len());
                let other = dice.below(inputs.len());
                let mut input = mutate(&mut dice, &inputs[base], &inputs[other]);
                if target.sealed && dice.below(2) == 0 {
                    input = sealed_again(input);
                }
                try_one(target, &input);
                tried += 1;
            }
        }
        eprintln!("{}: {tried} inputs", target.name);
        assert!(tried > 50, "{}: only {tried} inputs", target.name);
    }
}

/// The same content with the right checksum, if it contains an object to seal.
fn sealed_again(input: Vec<u8>) -> Vec<u8> {
    const TAIL: usize = ",\"sum\":\"00000000\"}\n".len();
    let Some(body) = input
        .len()
        .checked_sub(TAIL)
        .map(|end| [&input[..end], b"}"].concat())
    else {
        return input;
    };
    muster_sealed::seal(body)
}

/// `fuzz/` has one program per target, and no others.
#[test]
fn cargo_fuzz_has_the_same_targets() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("fuzz/Cargo.toml is there");
    for target in &ALL {
        let program = folder
            .join("fuzz_targets")
            .join(format!("{}.rs", target.name));
        let text =
            fs::read_to_string(&program).unwrap_or_else(|e| panic!("{}: {e}", program.display()));
        assert!(
            text.contains(&format!("\"{}\"", target.name)),
            "{}",
            program.display()
        );
        assert!(
            manifest.contains(&format!("name = \"{}\"", target.name)),
            "{} is not in fuzz/Cargo.toml",
            target.name
        );
    }
    assert_eq!(
        fs::read_dir(folder.join("fuzz_targets"))
            .expect("a folder")
            .count(),
        ALL.len()
    );
}
