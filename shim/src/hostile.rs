//! Everything that arrives in bytes, mutated: it ends in a value or an error.
//!
//! Deterministic: seed by seed from the files in `tests/corpus`. `SEEDS=n` tries more. What has ever failed is kept there.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use berth_proto::shim::{NamespaceMode, SandboxOptions};
use berth_proto::task::CreateTaskRequest;
use prost::Message;
use serde_json::{Value, json};

use crate::args::{self, Args};
use crate::container::{self, ExecPlan, Terminal};
use crate::pod::Pod;
use crate::runtime::Client;
use crate::start::{Asked, group, socket_path};
use crate::{bundle, info};

const SEEDS: u64 = 4_000;

fn seeds() -> u64 {
    env::var("SEEDS").map_or(SEEDS, |seeds| seeds.parse().expect("SEEDS is a number"))
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name);
    let mut files: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// xorshift64*: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn of(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let drawn = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(drawn).unwrap() % bound.max(1)
    }

    fn of_all<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

const EXTREMES: [&[u8]; 7] = [&[0xff; 10], &[0x80; 5], &[0; 8], b"\"", b"{", b"]", b"\\u0000"];

/// A few changes to one of the files.
fn mutated(random: &mut Random, files: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = random.of_all(files).clone();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => {
                let other = random.of_all(files);
                let from = random.below(other.len() + 1);
                bytes.splice(at..at, other[from..].iter().copied());
            }
            2 => bytes.insert(at, u8::try_from(random.below(256)).unwrap()),
            3 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            4 if at < bytes.len() => {
                bytes.remove(at);
            }
            _ => {
                let extreme = random.of_all(&EXTREMES);
                bytes.splice(at..at, extreme.iter().copied());
            }
        }
    }
    bytes
}

fn arguments() -> Args {
    args::parse("-namespace k8s.io -id c1 -address /run/c start".split(' ')).unwrap()
}

#[test]
fn any_bootstrap_bytes_are_parameters_or_not() {
    let files = corpus("bootstrap");
    let arguments = arguments();
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..seeds() {
        let bytes = mutated(&mut Random::of(seed), &files);
        let asked = Asked::of(&bytes, &arguments);
        match socket_path(&asked.socket_dir, "/run/c", "k8s.io", "c1") {
            Ok(path) => {
                assert!(path.is_absolute() && path.as_os_str().len() <= 103, "seed {seed}");
                taken += 1;
            }
            Err(_) => refused += 1,
        }
        info::options(&bytes);
        if let Ok(request) = CreateTaskRequest::decode(bytes.as_slice()) {
            let _planned =
                container::plan(&request, None, Client { address: "", namespace: "k8s.io" }).is_ok();
        }
    }
    assert!(taken > 0 && refused > 0, "both ways are tried: {taken}, {refused}");
}

#[test]
fn any_spec_is_understood_or_not() {
    let files = corpus("spec");
    let directory = tempfile::tempdir().unwrap();
    let (mut read, mut broken) = (0, 0);
    for seed in 0..seeds() {
        let bytes = mutated(&mut Random::of(seed), &files);
        let _understood = ExecPlan::own(&bytes, Terminal::AsAsked).is_ok();
        fs::write(directory.path().join("config.json"), &bytes).unwrap();
        match bundle::read_config(directory.path()) {
            Ok(config) => {
                adopt(config);
                read += 1;
            }
            Err(_) => broken += 1,
        }
    }
    assert!(read > 0 && broken > 0, "both ways are tried: {read}, {broken}");
}

/// Changes that keep the text JSON: a member becomes something else.
#[test]
fn any_types_in_a_spec_are_understood_or_not() {
    let files: Vec<Value> =
        corpus("spec").iter().filter_map(|bytes| serde_json::from_slice(bytes).ok()).collect();
    let directory = tempfile::tempdir().unwrap();
    for seed in 0..seeds() {
        let mut random = Random::of(seed);
        let mut config = random.of_all(&files).clone();
        for _ in 0..=random.below(3) {
            let all = [
                json!(null),
                json!(-1),
                json!(1e300),
                json!(""),
                json!([]),
                json!({}),
                json!([{}]),
                json!({"path": "/x"}),
            ];
            let odd = random.of_all(&all);
            *somewhere(&mut random, &mut config) = odd.clone();
        }
        fs::write(directory.path().join("berth.json"), config.to_string()).unwrap();
        let _record = bundle::read_record(directory.path()).is_ok();
        adopt(config);
    }
}

/// A value within a value.
fn somewhere<'v>(random: &mut Random, value: &'v mut Value) -> &'v mut Value {
    let len = match value {
        Value::Array(items) => items.len(),
        Value::Object(members) => members.len(),
        _ => 0,
    };
    if len == 0 || random.below(6) == 0 {
        return value;
    }
    let at = random.below(len);
    let inner = match value {
        Value::Array(items) => items.get_mut(at),
        Value::Object(members) => members.values_mut().nth(at),
        _ => None,
    };
    somewhere(random, inner.expect("it has as many"))
}

fn adopt(mut config: Value) {
    let _group = group(&config).is_ok();
    let options = SandboxOptions {
        ipc: NamespaceMode::Pod.into(),
        uts: NamespaceMode::Pod.into(),
        pid: NamespaceMode::Container.into(),
        ..SandboxOptions::default()
    };
    let pod = Pod::new("pod".to_owned(), "/nowhere".into(), "/run/netns/x".to_owned(), Some(options));
    let mut pod = pod.expect("such pods are everyday");
    let before = config.is_object();
    let _adopted = pod.adopt(&mut config).is_ok();
    assert_eq!(config.is_object(), before);
}
