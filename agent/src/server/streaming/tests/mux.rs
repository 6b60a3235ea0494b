//! Streams of which nobody asks, and those that are not what they should be.

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex},
    time::timeout,
};

use super::{
    client::{Frame, Spdy},
    world::LONG,
};
use crate::server::streaming::mux::{Driver, Mux, OPENED_MAX};

const HEADERS: [(&str, &str); 1] = [("streamtype", "data")];
const FIN_AND_UNIDIRECTIONAL: u8 = 3;

fn connected() -> (Mux, Driver<DuplexStream>, Spdy<DuplexStream>) {
    let (near, far) = duplex(64 << 10);
    let (mux, driver) = Mux::over(near);
    (mux, driver, Spdy::over(far))
}

async fn driven<T>(driver: Driver<T>, talk: impl Future<Output = ()>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let talk = timeout(LONG, talk);
    tokio::select! {
        ended = driver.run() => panic!("{:?}", ended.err()),
        talked = talk => talked.unwrap(),
    }
}

#[tokio::test]
async fn nothing_is_kept_of_streams_that_nobody_takes() {
    let (mux, driver, mut client) = connected();
    let talk = async {
        let first = client.open(&HEADERS).await;
        let opened = mux.opened().await.unwrap();
        let stream = mux.accept(&opened);
        assert_eq!(client.next().await, Some(Frame::Reply(first)));
        for _ in 0..OPENED_MAX {
            client.open_as(FIN_AND_UNIDIRECTIONAL, &HEADERS).await;
        }
        let beyond = client.open(&HEADERS).await;
        assert_eq!(client.next().await, Some(Frame::Reset(beyond)));
        assert_eq!(mux.held(), [1 + OPENED_MAX, OPENED_MAX, 0]);
        mux.refuse_others();
        assert_eq!(mux.held(), [1, 0, 0]);
        for _ in 0..10 * OPENED_MAX {
            client.open_as(FIN_AND_UNIDIRECTIONAL, &HEADERS).await;
        }
        let late = client.open(&HEADERS).await;
        assert_eq!(client.next().await, Some(Frame::Reset(late)));
        assert_eq!(mux.held(), [1, 0, 0]);
        drop(stream);
        assert_eq!(mux.held(), [0, 0, 0]);
    };
    driven(driver, talk).await;
}

#[tokio::test]
async fn a_stream_on_which_nothing_is_taken_fails_who_writes() {
    let (mux, driver, mut client) = connected();
    let talk = async {
        client.open_as(FIN_AND_UNIDIRECTIONAL, &HEADERS).await;
        let opened = mux.opened().await.unwrap();
        let mut stream = mux.accept(&opened);
        assert_eq!(stream.write_all(b"x").await.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    };
    driven(driver, talk).await;
}

#[tokio::test]
async fn bytes_that_come_one_by_one_are_kept_together() {
    let (mux, driver, mut client) = connected();
    let talk = async {
        let mut streams = Vec::new();
        for _ in 0..2 {
            let stream = client.open(&HEADERS).await;
            let opened = mux.opened().await.unwrap();
            streams.push((stream, mux.accept(&opened)));
        }
        for _ in 0..1000 {
            for (stream, _) in &streams {
                client.data(*stream, b"x", false).await;
            }
        }
        for (_, stream) in &mut streams {
            stream.read_exact(&mut [0; 1]).await.unwrap();
        }
        let last = client.open(&HEADERS).await;
        assert!(mux.opened().await.is_some(), "everything before stream {last} was read");
        let [.., pieces] = mux.held();
        assert!(pieces <= 4, "{pieces} pieces");
        for (_, stream) in &mut streams {
            stream.read_exact(&mut [0; 999]).await.unwrap();
        }
        assert_eq!(mux.held()[2], 0);
    };
    driven(driver, talk).await;
}
