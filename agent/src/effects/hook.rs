//! Hooks of containers: a command in one, or an HTTP GET. Source: `pkg/kubelet/lifecycle/handlers.go`.
//!
//! A hook has no time of its own: it ends by itself, or is given up when its container has ended. What it does is done in its effect's
//! task, so that nothing of it goes on then.

use std::sync::Arc;

use berth_core::{
    event::Outcome,
    failure::{Failure, FailureKind},
    id::PodUid,
    pod::port::{
        hook::{HookAnswer, HookCall, HookRequest},
        probe::{ExecProbe, HttpProbe},
    },
};
use berth_proto::{
    client::CallError,
    ttrpc::{Code, Status},
};

use super::{
    failure::unknown,
    host::Host,
    probe::{exec, http},
};
use crate::causes::with_causes;

/// Runs one.
pub(super) async fn run(host: &Arc<Host>, pod: &PodUid, request: &HookRequest) -> Result<Outcome, Failure> {
    let answer = match &request.call {
        HookCall::Exec { sandbox, command } => {
            let exec = ExecProbe { sandbox: sandbox.clone(), command: command.clone() };
            command_ended(host, request, &exec).await?
        }
        HookCall::Http(get) => asked(pod, get).await?,
    };
    Ok(Outcome::Hooked(answer))
}

/// A shim that is away may be back, and then it is asked again.
async fn command_ended(
    host: &Arc<Host>,
    request: &HookRequest,
    exec: &ExecProbe,
) -> Result<HookAnswer, Failure> {
    if exec::is_of_others(host, exec) {
        return Ok(failed("a shim of others cannot be asked by this version".to_owned()));
    }
    match exec::run(host, &request.id, exec, None).await {
        Ok(answer) if answer.exit_code == 0 => Ok(HookAnswer::Done),
        Ok(answer) => {
            let (command, code) = (exec.command.join(" "), answer.exit_code);
            let error = String::from_utf8_lossy(&answer.stderr);
            let error = format!("command '{command}' exited with {code}: {error}");
            Ok(HookAnswer::Failed { error, output: exec::output(&answer) })
        }
        Err(error) => not_run(&error),
    }
}

fn failed(error: String) -> HookAnswer {
    HookAnswer::Failed { error, output: String::new() }
}

/// What a call without an answer of the command comes to: the hook has failed, or is to be run again.
fn not_run(error: &CallError) -> Result<HookAnswer, Failure> {
    let why = with_causes(error);
    match error {
        // Nobody ran it: there is no room for it now, or containerd, which an older shim needs for it, is away.
        CallError::Status(Status { code: Code::Unavailable | Code::ResourceExhausted, .. }) => {
            Err(unknown(why))
        }
        CallError::Status(_) => Ok(failed(format!("failed to exec in container: {why}"))),
        CallError::Connect { .. }
        | CallError::Lost(_)
        | CallError::Timeout { .. }
        | CallError::Decode(_)
        | CallError::NotSent(_) => Err(unknown(why)),
    }
}

/// Whatever a server answers is success. One that speaks HTTP where HTTPS is asked for is asked by that, without what may be secret.
async fn asked(pod: &PodUid, get: &HttpProbe) -> Result<HookAnswer, Failure> {
    let done = |answer: Result<(), http::Unasked>| match answer {
        Ok(()) => Ok(HookAnswer::Done),
        // It says nothing of the container.
        Err(error) if error.is_of_the_node() => {
            Err(Failure { kind: FailureKind::Transient, message: error.to_string() })
        }
        Err(error) => Ok(HookAnswer::Failed { error: error.to_string(), output: String::new() }),
    };
    let answer = http::call(pod, get).await;
    if !matches!(answer, Err(http::Unasked::WithoutTls { .. })) {
        return done(answer);
    }
    let is_public = |(name, _): &&(String, String)| !name.eq_ignore_ascii_case("authorization");
    let headers = get.headers.iter().filter(is_public).cloned().collect();
    let plain = HttpProbe { tls: false, headers, ..get.clone() };
    match http::call(pod, &plain).await {
        Ok(()) => Ok(HookAnswer::WithoutTls(http::server(&plain))),
        Err(_) => done(answer),
    }
}

#[cfg(test)]
mod tests {
    use std::{io, time::Duration};

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
        sync::mpsc,
    };

    use super::*;

    /// A server that answers whatever it is asked with this, and what it heard first of each connection.
    async fn server(answer: &'static str) -> (u16, mpsc::Receiver<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (hears, heard) = mpsc::channel(4);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut first = vec![0; 4096];
                let bytes = stream.read(&mut first).await.unwrap_or_default();
                first.truncate(bytes);
                drop((hears.send(first).await, stream.write_all(answer.as_bytes()).await));
            }
        });
        (port, heard)
    }

    fn get(tls: bool, port: u16) -> HttpProbe {
        let headers = [("Authorization", "secret"), ("X-It", "is")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        HttpProbe { tls, host: "127.0.0.1".into(), port, path: "/hook".into(), headers }
    }

    /// Whether it was run or not, it is run again unless the shim has said that it cannot be.
    #[test]
    fn a_command_that_a_shim_refuses_has_failed_and_any_other_is_run_again() {
        let refused = |code| CallError::Status(Status::new(code, "no"));
        let timeout = || CallError::Timeout { method: "exec".to_owned(), after: Duration::from_secs(1) };
        let connect = || CallError::Connect { path: "/shim".into(), source: io::ErrorKind::NotFound.into() };
        for (error, has_failed) in [
            (refused(Code::Internal), true),
            (refused(Code::NotFound), true),
            (refused(Code::Unavailable), false),
            (refused(Code::ResourceExhausted), false),
            (connect(), false),
            (CallError::Lost(Arc::new(io::ErrorKind::ConnectionReset.into())), false),
            (timeout(), false),
        ] {
            match not_run(&error) {
                Ok(HookAnswer::Failed { error: why, output }) => {
                    assert!(has_failed, "{error:?} is no failure of the hook");
                    let expected = format!("failed to exec in container: {}", with_causes(&error));
                    assert_eq!((why, output), (expected, String::new()));
                }
                Ok(other) => panic!("{error:?}: {other:?}"),
                Err(Failure { kind, .. }) => {
                    assert_eq!((kind, has_failed), (FailureKind::Unknown, false), "{error:?}");
                }
            }
        }
    }

    #[tokio::test]
    async fn whatever_a_server_answers_is_success() {
        for answer in ["HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"] {
            let (port, mut heard) = server(answer).await;
            assert_eq!(asked(&PodUid::new("u"), &get(false, port)).await, Ok(HookAnswer::Done));
            let request = String::from_utf8(heard.recv().await.unwrap()).unwrap();
            assert!(request.starts_with("GET /hook HTTP/1.1\r\n"), "{request}");
            for header in ["User-Agent: kube-lifecycle/1.36", "Authorization: secret", "Accept: */*"] {
                assert!(request.contains(header), "{request}");
            }
        }
    }

    #[tokio::test]
    async fn a_server_without_https_is_asked_by_http_without_what_may_be_secret() {
        let (port, mut heard) = server("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
        let answer = asked(&PodUid::new("u"), &get(true, port)).await;
        assert_eq!(answer, Ok(HookAnswer::WithoutTls(format!("127.0.0.1:{port}"))));
        // A handshake begins with its kind and version.
        assert_eq!(heard.recv().await.unwrap()[..2], [22, 3]);
        let request = String::from_utf8(heard.recv().await.unwrap()).unwrap();
        assert!(request.contains("X-It: is") || request.contains("X-it: is"), "{request}");
        assert!(!request.contains("secret"), "{request}");
    }

    #[tokio::test]
    async fn a_hook_fails_where_nobody_answers() {
        let (port, _heard) = server("no").await;
        let Ok(HookAnswer::Failed { error, .. }) = asked(&PodUid::new("u"), &get(true, port)).await else {
            panic!("it is run")
        };
        assert!(error.starts_with(&format!("Get \"https://127.0.0.1:{port}/hook\": tls: ")), "{error}");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let refused = format!(
            "Get \"http://127.0.0.1:{port}/hook\": dial tcp 127.0.0.1:{port}: connect: connection refused"
        );
        let failed = Ok(HookAnswer::Failed { error: refused, output: String::new() });
        assert_eq!(asked(&PodUid::new("u"), &get(false, port)).await, failed);
    }

    /// A server that announces more than is read, and sends nothing of it.
    #[tokio::test]
    async fn a_long_answer_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10241\r\n\r\n").await.unwrap();
            std::future::pending::<()>().await;
        });
        assert_eq!(asked(&PodUid::new("u"), &get(false, port)).await, Ok(HookAnswer::Done));
    }
}
