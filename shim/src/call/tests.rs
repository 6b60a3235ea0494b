//! Requests of every method with mutated messages: an answer or a status, never a panic.

use berth_fuzz::{Corpus, Random, mutate, seeds};
use prost::Message;

use super::*;
use crate::container;
use crate::runtime::Client;

const METHODS: [(&str, &[&str]); 3] = [
    (
        TASK_V3,
        &[
            task_service::CREATE,
            task_service::START,
            task_service::DELETE,
            task_service::WAIT,
            task_service::EXEC,
            task_service::KILL,
            task_service::STATE,
            task_service::UPDATE,
            task_service::CHECKPOINT,
            task_service::CONNECT,
            task_service::SHUTDOWN,
            task_service::PIDS,
            task_service::STATS,
            task_service::PAUSE,
            task_service::RESUME,
            task_service::RESIZE_PTY,
            task_service::CLOSE_IO,
        ],
    ),
    (
        sandbox_service::NAME,
        &[
            sandbox_service::CREATE_SANDBOX,
            sandbox_service::START_SANDBOX,
            sandbox_service::STOP_SANDBOX,
            sandbox_service::WAIT_SANDBOX,
            sandbox_service::SANDBOX_STATUS,
            sandbox_service::SHUTDOWN_SANDBOX,
            sandbox_service::PLATFORM,
            sandbox_service::PING_SANDBOX,
            sandbox_service::SANDBOX_METRICS,
        ],
    ),
    (
        shim_service::NAME,
        &[
            shim_service::STATE,
            shim_service::EVENTS,
            shim_service::EXEC_SYNC,
            shim_service::ATTACH,
            shim_service::EXEC,
            shim_service::STATS,
            shim_service::REOPEN_LOG,
        ],
    ),
];

/// Takes a message as each of the methods would, and as the messages of streams.
fn take_everywhere(payload: &[u8]) {
    for (service, methods) in METHODS {
        for method in methods {
            let (service, method) = (service.to_owned(), (*method).to_owned());
            let request = Wire { service, method, payload: payload.to_vec(), ..Wire::default() };
            match parse(&request) {
                Ok(parsed) => look_closer(&parsed),
                Err(status) => assert_eq!(
                    status.code,
                    Code::InvalidArgument,
                    "{method}: {status}",
                    method = request.method
                ),
            }
        }
    }
    if let Ok(input) = wire::AttachInput::decode(payload) {
        let _either = parse_stream_start(input).is_ok();
    }
}

/// What is read of a request later, before anything is done.
fn look_closer(parsed: &Parsed) {
    match parsed {
        Parsed::Ask(Call::Create(request), _) => {
            if let Ok(container) = container::plan(request, None, Client { address: "", namespace: "ns" }) {
                let _either = container::wiring(&container.streams).is_ok();
            }
        }
        Parsed::Ask(Call::Exec(plan), _) => {
            let _either = container::wiring(&plan.streams).is_ok();
        }
        Parsed::Ask(Call::ExecSync(request), _) => {
            let _either = ExecPlan::own(&request.process, container::Terminal::Never).is_ok();
            assert!(container::output_bytes_max(request.output_bytes_max) <= 1 << 20);
        }
        Parsed::CreateSandbox(request) => {
            let _either = sandbox_options(request).is_ok();
        }
        Parsed::Ask(..)
        | Parsed::OfSandbox(..)
        | Parsed::Pids(_)
        | Parsed::Platform
        | Parsed::Ping
        | Parsed::SandboxMetrics
        | Parsed::Stats
        | Parsed::Stream => {}
    }
}

#[test]
fn no_request_breaks_the_parser() {
    let corpus = Corpus::load("request");
    for (_, payload) in corpus.iter() {
        take_everywhere(payload);
    }
    seeds(3_000, |seed| take_everywhere(&mutate(&mut Random::new(seed), &corpus)));
}
