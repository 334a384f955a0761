//! The fuzzers' corpus: every file goes through its target.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

#[path = "../fuzz/entry.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::redundant_closure_for_method_calls,
    reason = "written for the fuzzers"
)]
mod entry;

#[test]
fn every_file_of_the_corpus_is_read_or_refused() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/corpus");
    let mut files = 0;
    for folder in fs::read_dir(&corpus).unwrap() {
        let folder = folder.unwrap().path();
        let name = folder.file_name().unwrap().to_str().unwrap();
        let target = entry::target(name).unwrap_or_else(|| panic!("no target `{name}`"));
        for file in fs::read_dir(&folder).unwrap() {
            target(&fs::read(file.unwrap().path()).unwrap());
            files += 1;
        }
    }
    assert!(files >= 40, "only {files} files");
}

/// Changes to the corpus at random, for machines without cargo-fuzz:
/// `MUTATE_SECONDS=60 cargo test --test front formats_corpus -- --ignored --nocapture`.
#[test]
#[ignore = "runs for as long as it is told"]
fn mutations_of_the_corpus_are_read_or_refused() {
    let seconds = std::env::var("MUTATE_SECONDS").map_or(10, |s| s.parse().unwrap());
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/corpus");
    for folder in fs::read_dir(&corpus).unwrap() {
        let folder = folder.unwrap().path();
        let name = folder.file_name().unwrap().to_str().unwrap();
        let target = entry::target(name).unwrap();
        let mut seeds: Vec<Vec<u8>> = fs::read_dir(&folder)
            .unwrap()
            .map(|file| fs::read(file.unwrap().path()).unwrap())
            .collect();
        seeds.sort();
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let start = Instant::now();
        let mut runs = 0_u64;
        while start.elapsed() < Duration::from_secs(seconds) {
            let mut bytes = seeds[random.below(seeds.len())].clone();
            for _ in 0..=random.below(6) {
                mutate(&mut bytes, &seeds, &mut random);
            }
            let before = Instant::now();
            let result = std::panic::catch_unwind(|| target(&bytes));
            if result.is_err() || before.elapsed() > Duration::from_secs(10) {
                let path = std::env::temp_dir().join(format!("mutation-{name}"));
                fs::write(&path, &bytes).unwrap();
                panic!("{name}: see {}", path.display());
            }
            runs += 1;
        }
        println!("{name}: {runs} runs in {seconds} s");
    }
}

/// A small generator of random numbers (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit.max(1)).unwrap();
        usize::try_from(self.next() % limit).unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[3]
    }
}

/// One change: a bit, a byte, an interesting number, a piece removed, repeated or taken from another file.
fn mutate(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Random) {
    let place = random.below(bytes.len() + 1);
    match random.below(8) {
        0 => bytes.truncate(place),
        1 => bytes.insert(place, random.byte()),
        2 if place < bytes.len() => bytes[place] ^= 1 << random.below(8),
        3 if place < bytes.len() => bytes[place] = random.byte(),
        4 if place < bytes.len() => {
            let end = (place + random.below(16) + 1).min(bytes.len());
            bytes.drain(place..end);
        }
        5 => {
            let numbers: [&[u8]; 6] = [
                &[0xff; 8],
                &[0; 8],
                &[0, 0, 0, 0x80],
                &[0xff, 0xff, 0xff, 0x7f],
                &[0xff; 2],
                b"(K\x01K\x02tR.",
            ];
            let number = numbers[random.below(numbers.len())];
            bytes.splice(place..place, number.iter().copied());
        }
        6 => {
            let end = (place + random.below(64) + 1).min(bytes.len());
            let piece = bytes[place.min(end)..end].to_vec();
            let times = random.below(4) + 1;
            bytes.splice(place..place, piece.repeat(times));
        }
        _ => {
            let other = &seeds[random.below(seeds.len())];
            let from = random.below(other.len() + 1);
            let to = (from + random.below(64)).min(other.len());
            bytes.splice(place..place, other[from..to].iter().copied());
        }
    }
}
