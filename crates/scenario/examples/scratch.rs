fn main() {
    let path = std::env::args().nth(1).unwrap();
    let options = netstage_scenario::Options {
        sets: std::env::args().skip(2).map(|a| { let (p, v) = a.split_once('=').unwrap(); (p.into(), v.into()) }).collect(),
        ..Default::default()
    };
    match netstage_scenario::load(path.as_ref(), &options) {
        Ok(s) => {
            println!("{} cells", s.cells.len());
            println!("{:?} {:?}", s.expectations, s.plots);
            for c in &s.cells { println!("{:?} {:?}", c.variant, c.settings); }
            println!("{:#?} {:?}", s.cells[0].plan, s.warnings);
            if std::env::args().count() > 2 { println!("{}", s.text); }
        }
        Err(e) => print!("{e}"),
    }
}
