//! `berth port-forward`: ports of this machine that lead to ports of a pod.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::{
    ask::{Failure, PodName},
    output::{harmless, show},
};
use crate::{
    causes::with_causes,
    control::{
        Client, ClientError,
        protocol::{ANSWER_MAX, Answer, Frame, Request},
    },
};

/// Which ports of which pod.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    pub(super) pod: PodName,
    /// Port of the pod, or one of this machine before it: 8080:80; `:80` takes any that is free
    #[arg(required = true, value_name = "[LOCAL:]REMOTE")]
    pub(super) ports: Vec<Forwarded>,
}

/// A port of this machine and one of the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Forwarded {
    /// Zero is any that is free.
    local: u16,
    remote: u16,
}

/// What is no such pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a port from 1 to 65535, or two with a colon between")]
pub(super) struct NotPorts;

impl FromStr for Forwarded {
    type Err = NotPorts;

    fn from_str(text: &str) -> Result<Self, NotPorts> {
        let port = |text: &str| {
            let port = text.parse::<u16>().ok().filter(|port| *port > 0 && !text.starts_with('+'));
            port.ok_or(NotPorts)
        };
        match text.split_once(':') {
            None => Ok(Self { local: port(text)?, remote: port(text)? }),
            Some(("", remote)) => Ok(Self { local: 0, remote: port(remote)? }),
            Some((local, remote)) => Ok(Self { local: port(local)?, remote: port(remote)? }),
        }
    }
}

/// The pod, and how its agent is asked.
#[derive(Debug)]
struct Target {
    socket: PathBuf,
    namespace: String,
    name: String,
}

/// Forwards connections until it is ended.
pub(super) async fn run(socket: &Path, options: &Options) -> Result<(), Failure> {
    let metadata = options.pod.object(socket).await?.pod.metadata;
    let target = Arc::new(Target {
        socket: socket.to_owned(),
        namespace: metadata.namespace.unwrap_or_default(),
        name: metadata.name.unwrap_or_default(),
    });
    let mut listening = JoinSet::new();
    for port in &options.ports {
        for (listener, address) in listen(port.local).await? {
            let line = format!("Forwarding from {address} -> {}\n", port.remote);
            show(&mut io::stdout().lock(), line.as_bytes())?;
            listening.spawn(accept(listener, address.port(), port.remote, Arc::clone(&target)));
        }
    }
    while listening.join_next().await.is_some() {}
    Ok(())
}

/// Listens on the loopback device, over both versions of IP where both are there.
async fn listen(port: u16) -> Result<Vec<(TcpListener, SocketAddr)>, Failure> {
    let (mut listeners, mut port, mut failed) = (Vec::new(), port, None);
    for ip in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        match TcpListener::bind((ip, port)).await.and_then(|it| it.local_addr().map(|address| (it, address)))
        {
            Ok((listener, address)) => {
                port = address.port();
                listeners.push((listener, address));
            }
            Err(error) => {
                failed = Some(format!("failed to listen on {}: {error}", SocketAddr::new(ip, port)));
            }
        }
    }
    match failed {
        Some(why) if listeners.is_empty() => Err(Failure::Failed(why)),
        _ => Ok(listeners),
    }
}

async fn accept(listener: TcpListener, local: u16, remote: u16, target: Arc<Target>) {
    while let Ok((connection, _)) = listener.accept().await {
        say(&format!("Handling connection for {local}"));
        let target = Arc::clone(&target);
        tokio::spawn(async move {
            if let Err(why) = target.forward(connection, remote).await {
                say(&format!("an error occurred forwarding {local} -> {remote}: {why}"));
            }
        });
    }
}

impl Target {
    async fn forward(&self, mut connection: TcpStream, port: u16) -> Result<(), String> {
        let asked = |error: ClientError| format!("failed to {}", with_causes(&error));
        let mut client = Client::connect(&self.socket).await.map_err(asked)?;
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        client.send(Request::PortForward { namespace, name, port }).await.map_err(asked)?;
        let frame = Frame::read(&mut client.stream, ANSWER_MAX).await.map_err(|error| with_causes(&error))?;
        let frame = frame.ok_or_else(|| with_causes(&ClientError::NoAnswer))?;
        match frame.parse::<Answer>().map_err(|error| with_causes(&error))? {
            Answer::Forwarded => {
                // Either end may break off as it likes.
                drop(copy_bidirectional(&mut connection, &mut client.stream).await);
                Ok(())
            }
            Answer::Failed { message } | Answer::NotFound { message } => Err(message),
            _ => Err("the agent answered something else than was asked".to_owned()),
        }
    }
}

/// A line on standard error. Whether somebody reads it changes nothing.
fn say(line: &str) {
    drop(show(&mut io::stderr().lock(), format!("{}\n", harmless(line)).as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_one_or_two() {
        let ports = |local, remote| Ok(Forwarded { local, remote });
        for (text, expected) in [
            ("80", ports(80, 80)),
            ("8080:80", ports(8080, 80)),
            (":80", ports(0, 80)),
            ("80:", Err(NotPorts)),
            ("0", Err(NotPorts)),
            ("8080:0", Err(NotPorts)),
            ("65536", Err(NotPorts)),
            ("+80", Err(NotPorts)),
            ("1:2:3", Err(NotPorts)),
            ("http", Err(NotPorts)),
        ] {
            assert_eq!(text.parse::<Forwarded>(), expected, "{text}");
        }
    }
}
