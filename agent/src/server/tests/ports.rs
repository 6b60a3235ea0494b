//! Both ports, as the settings ask for them.

use std::net::{Ipv4Addr, SocketAddr};

use berth_core::server::Debugging;
use tokio::{
    net::{TcpSocket, TcpStream},
    runtime::Handle,
    sync::watch,
    time::timeout,
};

use super::{
    super::{
        Requests,
        thread::{Asking, serve},
    },
    client::{LONG, Speaks, ask, connect, request},
    pki::Authority,
    world::{Echo, certificate},
};
use crate::config::{AuthenticationSettings, AuthorizationSettings, ServerSettings, TlsSettings, TlsVersion};

/// An address that nobody else takes while its socket is there, and at which one may listen who says `SO_REUSEADDR`.
fn reserved() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn settings(listen: SocketAddr, read_only: Option<SocketAddr>) -> ServerSettings {
    ServerSettings {
        listen,
        read_only,
        tls: TlsSettings { least: TlsVersion::Tls12, suites: None, groups: None },
        authentication: AuthenticationSettings { client_ca: None, tokens: None, anonymous: false },
        authorization: AuthorizationSettings::AlwaysAllow,
        debugging: Debugging::On { logs: true },
        stream_idle: LONG,
    }
}

#[tokio::test]
async fn the_read_only_port_is_there_where_it_is_asked_for_and_lets_anybody_look() {
    let of_server = Authority::new();
    let (_presented, presenting) = watch::channel(Some(certificate(&of_server)));
    for is_there in [true, false] {
        let ((_main, main), (_read_only, read_only)) = (reserved(), reserved());
        let asking = Asking { clients: None, node: "node-1".into(), main: Handle::current() };
        let settings = settings(main, is_there.then_some(read_only));
        let serving = serve(Echo::default(), Requests::new().unwrap(), asking, settings, presenting.clone());
        let talk = async {
            for (method, path, status) in [
                ("GET", "/pods", 200),
                ("GET", "/healthz", 200),
                ("POST", "/exec/ns/p/c", 405),
                ("GET", "/containerLogs/ns/p/c", 405),
                ("GET", "/configz", 404),
            ] {
                let mut stream = connect(main, &of_server, None, Speaks::default()).await.unwrap();
                let heard = ask(&mut stream, &request(method, path, "")).await.unwrap();
                assert_eq!(heard.status, 401, "{method} {path}");
                if is_there {
                    let mut stream = TcpStream::connect(read_only).await.unwrap();
                    let heard = ask(&mut stream, &request(method, path, "")).await.unwrap();
                    assert_eq!(heard.status, status, "{method} {path}");
                }
            }
            assert_eq!(TcpStream::connect(read_only).await.is_ok(), is_there);
        };
        tokio::select! {
            // First, so that it listens when somebody comes.
            biased;
            () = serving => panic!("the server has ended"),
            talked = timeout(LONG, talk) => talked.unwrap(),
        }
    }
}
