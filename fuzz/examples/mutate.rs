//! Runs the targets without libFuzzer: a loop of random mutations of the seeds, on any toolchain.
//!
//! Without coverage guidance, so it finds less, but runs of the same length use the same inputs.
//!
//! ```text
//! mutate run TARGET SECONDS [SEED]    fuzzes; a failing input is kept under fuzz/artifacts
//! mutate seed TARGET DIRECTORY        writes the seeds there, as libFuzzer's initial corpus
//! mutate replay TARGET FILE...        runs the target on files
//! mutate list                         lists the targets
//! ```

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ibsm_fuzz::{TARGETS, Target};

/// An input that takes longer is a finding: it would block a responder.
const INPUT_TIME_MAX: Duration = Duration::from_secs(2);
const INPUT_LEN_MAX: usize = 64 << 10;
const CORPUS_MAX: usize = 20_000;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["run", target, seconds] => run(find(target)?, seconds.parse()?, 1),
        ["run", target, seconds, seed] => run(find(target)?, seconds.parse()?, seed.parse()?),
        ["seed", target, directory] => seed(find(target)?, Path::new(directory)),
        ["replay", target, ref files @ ..] => replay(find(target)?, files),
        ["list"] => {
            TARGETS.iter().for_each(|target| println!("{}", target.name));
            Ok(())
        }
        _ => Err("usage: mutate run|seed|replay|list ...; see the head of the source file".into()),
    }
}

fn find(name: &str) -> Result<&'static Target, String> {
    TARGETS.iter().find(|target| target.name == name).ok_or(format!("no target '{name}'"))
}

fn seed(target: &Target, directory: &Path) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(directory)?;
    for (i, seed) in (target.seeds)().iter().enumerate() {
        std::fs::write(directory.join(format!("seed-{i:05}")), seed)?;
    }
    Ok(())
}

fn replay(target: &Target, files: &[&str]) -> Result<(), Box<dyn Error>> {
    for file in files {
        (target.run)(&std::fs::read(file)?);
    }
    Ok(())
}

fn run(target: &Target, seconds: u64, seed: u64) -> Result<(), Box<dyn Error>> {
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut corpus = (target.seeds)();
    let mut runs = 0u64;
    while Instant::now() < end {
        let input = mutated(&corpus, &mut random);
        let begun = Instant::now();
        let panicked = std::panic::catch_unwind(|| (target.run)(&input)).is_err();
        let too_slow = begun.elapsed() > INPUT_TIME_MAX;
        if panicked || too_slow {
            let path = keep(target, &input)?;
            let what = if panicked { "failed" } else { "took too long" };
            return Err(
                format!("{} {what} after {runs} inputs: {}", target.name, path.display()).into()
            );
        }
        runs += 1;
        // A mutated input may be mutated again; without coverage all inputs are equal.
        if random.below(64) == 0 && corpus.len() < CORPUS_MAX {
            corpus.push(input);
        }
    }
    println!("{}: {runs} inputs in {seconds} s, nothing found", target.name);
    Ok(())
}

fn keep(target: &Target, input: &[u8]) -> std::io::Result<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts").join(target.name);
    std::fs::create_dir_all(&directory)?;
    let hash = input.iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    });
    let path = directory.join(format!("mutate-{hash:016x}"));
    std::fs::write(&path, input)?;
    Ok(path)
}

/// xorshift64*: the same numbers for the same seed on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `limit`, which is at least 1.
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

fn mutated(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(6) {
        let at = random.below(input.len() + 1);
        match random.below(9) {
            0 => input.truncate(at),
            1 => input.insert(at, random.next() as u8),
            2 => {
                let other = &corpus[random.below(corpus.len())];
                input.truncate(at);
                input.extend(&other[at.min(other.len())..]);
            }
            3 => {
                let end = at + random.below((input.len() - at + 1).min(64));
                let piece = input[at..end].to_vec();
                input.splice(at..at, piece);
            }
            4 => drop(input.drain(at..at + random.below((input.len() - at + 1).min(64)))),
            _ if at == input.len() => {}
            5 => input[at] = [0, 1, 0x7F, 0x80, 0xFE, 0xFF][random.below(6)],
            6 => input[at] = input[at].wrapping_add([1, 0xFF, 16][random.below(3)]),
            7 => input[at] ^= 1 << random.below(8),
            _ => input[at] = random.next() as u8,
        }
    }
    input.truncate(INPUT_LEN_MAX);
    input
}
