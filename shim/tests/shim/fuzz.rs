//! A living shim under mutated frames: what is wrong ends with a status or with its connection, and others are served.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use berth_fuzz::{Corpus, Random, cuts, mutate, seeds};
use berth_proto::task::{ConnectRequest, ConnectResponse, task_service};
use berth_proto::ttrpc::{Decoder, MessageType};

use crate::harness::{Pod, Spec, Task, World, until};
use crate::{Case, FAKE};

pub(crate) const CASES: &[Case] = &[
    ("calls_of_the_corpus_are_answered", FAKE, calls_of_the_corpus_are_answered),
    ("no_client_breaks_the_shim", FAKE, no_client_breaks_the_shim),
];

/// Bound of the wait for an answer.
const WITHIN: Duration = Duration::from_secs(20);
/// What the shim may grow by under any number of clients.
const GROWTH_MAX: usize = 1 << 20;

fn serves(pod: &Pod<'_>) {
    let request = ConnectRequest { id: "x".to_owned() };
    let answer: ConnectResponse = pod.shim.task(task_service::CONNECT, &request).unwrap();
    assert_eq!(answer.shim_pid, pod.shim.pid);
}

fn descriptors(pod: &Pod<'_>) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", pod.shim.pid)).unwrap().count()
}

fn resident(pod: &Pod<'_>) -> usize {
    let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", pod.shim.pid)).unwrap();
    let line = text.lines().find(|line| line.starts_with("Rss:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

fn echoing<'s>(pod: &'s Pod<'_>) -> Task<'s> {
    let script = "while read line; do echo $line; done; exec sleep 1000";
    let task = Task::try_create(&pod.shim, "c1", Spec::sh(script), "attach:", "").unwrap();
    task.begin().unwrap();
    task
}

/// Every stream that is opened gets something back, but for those that wait for what does not happen.
fn calls_of_the_corpus_are_answered(world: &World) {
    let pod = Pod::start(world);
    let _task = echoing(&pod);
    for (name, input) in Corpus::load("calls").iter() {
        let mut decoder = Decoder::default();
        decoder.feed(input);
        let frames = std::iter::from_fn(|| decoder.next().unwrap());
        let asked: BTreeSet<u32> =
            frames.filter(|frame| frame.kind == MessageType::Request).map(|frame| frame.stream).collect();
        let waiting = match name {
            "wait-and-state" | "sandbox-wait" => BTreeSet::from([1]),
            "attach" => BTreeSet::from([1]),
            _ => BTreeSet::new(),
        };
        let mut socket = UnixStream::connect(pod.shim.socket()).unwrap();
        socket.set_read_timeout(Some(WITHIN)).unwrap();
        socket.write_all(input).unwrap();
        let (mut answers, mut answered) = (Decoder::default(), BTreeSet::new());
        while !asked.iter().all(|stream| answered.contains(stream) || waiting.contains(stream)) {
            let mut buffer = [0; 4096];
            let len =
                socket.read(&mut buffer).unwrap_or_else(|error| panic!("{name} is not answered: {error}"));
            assert!(len > 0, "{name}: the connection goes on");
            answers.feed(&buffer[..len]);
            answered.extend(std::iter::from_fn(|| answers.next().unwrap()).map(|frame| frame.stream));
        }
        serves(&pod);
    }
}

fn no_client_breaks_the_shim(world: &World) {
    let pod = Pod::start(world);
    let _task = echoing(&pod);
    let corpus = Corpus::load("calls");
    let before = (descriptors(&pod), resident(&pod));
    seeds(1_500, |seed| {
        let mut random = Random::new(seed);
        let input = mutate(&mut random, &corpus);
        let path = if random.once_in(2) { pod.shim.socket() } else { pod.agent_socket.clone() };
        let mut socket = UnixStream::connect(path).unwrap();
        for piece in cuts(&mut random, &input) {
            socket.write_all(piece).unwrap();
        }
        if random.once_in(10) {
            serves(&pod);
        }
    });
    serves(&pod);
    until("the clients' descriptors to go", || (descriptors(&pod) <= before.0).then_some(()));
    let grown = resident(&pod).saturating_sub(before.1);
    assert!(grown < GROWTH_MAX, "the shim grew by {grown} bytes");
}
