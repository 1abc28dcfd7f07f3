//! Messages of FRR's bfdd to its data plane, from arbitrary bytes: rejected, or read alike without what follows them.

use netstage_wire::bfd_data_plane::{MAX_MESSAGE, MAX_REPORT, PlaneReport, PlaneRequest};

pub fn run(bytes: &[u8]) {
    let Ok((header, request)) = PlaneRequest::read(bytes) else { return };
    assert!(header.length <= bytes.len().min(MAX_MESSAGE), "{header:?}");
    assert_eq!(PlaneRequest::read(&bytes[..header.length]), Ok((header, request)));
    assert!(PlaneRequest::read(&bytes[..header.length - 1]).is_err());
    if let PlaneRequest::Echo { identification, times } = request {
        // The answer differs in its type only.
        let mut answer = [0; MAX_REPORT];
        let length = PlaneReport::Echo { identification, times }.write(header.version, &mut answer);
        assert_eq!((&answer[4..6], &answer[8..length]), (&bytes[4..6], &bytes[8..length]));
    }
}
