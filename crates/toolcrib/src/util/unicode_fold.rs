//! Folding of text for comparisons in which case and the composition of letters do not matter, as on some file systems.
//!
//! A letter with a mark has two forms, `é` and `e` with U+0301. Both fold to the second one. Covered are the letters of Latin,
//! Greek and Cyrillic, kana and Hangul, but not characters that are only another code of the same letter. A crate with the
//! tables of all scripts would be larger than everything that uses it here.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

/// The letters that have one form with a mark: each letter, followed by that form. Lower case only.
struct MarkedLetters {
    mark: char,
    pairs: &'static str,
}

#[rustfmt::skip]
const MARKED_LETTERS: &[MarkedLetters] = &[
    MarkedLetters { mark: '\u{300}', pairs: "aàeèiìoòuùüǜnǹеѐиѝēḕōṑwẁâầăằêềôồơờưừyỳἀἂἁἃἐἒἑἓἠἢἡἣἰἲἱἳὀὂὁὃὐὒὑὓὠὢὡὣαὰεὲηὴιὶοὸ\
        υὺωὼ᾿῍ϊῒ῾῝ϋῢ¨῭" },
    MarkedLetters { mark: '\u{301}', pairs: "aáeéiíoóuúyýcćlĺnńrŕsśzźüǘgǵåǻæǽøǿ̈̈́¨΅ϊΐαάεέηήιίϋΰοόυύωώϒϓгѓкќçḉēḗïḯkḱmḿõṍōṓ\
        pṕũṹwẃâấăắêếôốơớưứἀἄἁἅἐἔἑἕἠἤἡἥἰἴἱἵὀὄὁὅὐὔὑὕὠὤὡὥ᾿῎῾῞" },
    MarkedLetters { mark: '\u{302}', pairs: "aâeêiîoôuûcĉgĝhĥjĵsŝwŵyŷzẑạậẹệọộ" },
    MarkedLetters { mark: '\u{303}', pairs: "aãnñoõiĩuũvṽâẫăẵeẽêễôỗơỡưữyỹ" },
    MarkedLetters { mark: '\u{304}', pairs: "aāeēiīoōuūüǖäǟȧǡæǣǫǭöȫõȭȯȱyȳиӣуӯgḡḷḹṛṝαᾱιῑυῡ" },
    MarkedLetters { mark: '\u{306}', pairs: "aăeĕgğiĭoŏuŭийуўжӂаӑеӗȩḝạặαᾰιῐυῠ" },
    MarkedLetters { mark: '\u{307}', pairs: "cċeėgġIİzżaȧoȯbḃdḋfḟhḣmṁnṅpṗrṙsṡśṥšṧṣṩtṫwẇxẋyẏ" },
    MarkedLetters { mark: '\u{308}', pairs: "aäeëiïoöuüyÿιϊυϋϒϔеёіїаӓәӛжӝзӟиӥоӧөӫэӭуӱчӵыӹhḧõṏūṻwẅxẍtẗ" },
    MarkedLetters { mark: '\u{309}', pairs: "aảâẩăẳeẻêểiỉoỏôổơởuủưửyỷ" },
    MarkedLetters { mark: '\u{30a}', pairs: "aåuůwẘyẙ" },
    MarkedLetters { mark: '\u{30b}', pairs: "oőuűуӳ" },
    MarkedLetters { mark: '\u{30c}', pairs: "cčdďeělľnňrřsštťzžaǎiǐoǒuǔüǚgǧkǩʒǯjǰhȟ" },
    MarkedLetters { mark: '\u{30f}', pairs: "aȁeȅiȉoȍrȑuȕѵѷ" },
    MarkedLetters { mark: '\u{311}', pairs: "aȃeȇiȋoȏrȓuȗ" },
    MarkedLetters { mark: '\u{313}', pairs: "αἀεἐηἠιἰοὀυὐωὠρῤ" },
    MarkedLetters { mark: '\u{314}', pairs: "αἁεἑηἡιἱοὁυὑωὡρῥ" },
    MarkedLetters { mark: '\u{31b}', pairs: "oơuư" },
    MarkedLetters { mark: '\u{323}', pairs: "bḅdḍhḥkḳlḷmṃnṇrṛsṣtṭvṿwẉzẓaạeẹiịoọơợuụưựyỵ" },
    MarkedLetters { mark: '\u{324}', pairs: "uṳ" },
    MarkedLetters { mark: '\u{325}', pairs: "aḁ" },
    MarkedLetters { mark: '\u{326}', pairs: "sștț" },
    MarkedLetters { mark: '\u{327}', pairs: "cçgģkķlļnņrŗsştţeȩdḑhḩ" },
    MarkedLetters { mark: '\u{328}', pairs: "aąeęiįuųoǫ" },
    MarkedLetters { mark: '\u{32d}', pairs: "dḓeḙlḽnṋtṱuṷ" },
    MarkedLetters { mark: '\u{32e}', pairs: "hḫ" },
    MarkedLetters { mark: '\u{330}', pairs: "eḛiḭuṵ" },
    MarkedLetters { mark: '\u{331}', pairs: "bḇdḏkḵlḻnṉrṟtṯzẕhẖ" },
    MarkedLetters { mark: '\u{338}', pairs: "←↚→↛↔↮⇐⇍⇔⇎⇒⇏∃∄∈∉∋∌∣∤∥∦∼≁≃≄≅≇≈≉=≠≡≢≍≭<≮>≯≤≰≥≱≲≴≳≵≶≸≷≹≺⊀≻⊁⊂⊄⊃⊅⊆⊈⊇⊉⊢⊬⊨⊭⊩⊮⊫⊯≼⋠≽⋡\
        ⊑⋢⊒⋣⊲⋪⊳⋫⊴⋬⊵⋭⫝⫝̸" },
    MarkedLetters { mark: '\u{342}', pairs: "ἀἆἁἇἠἦἡἧἰἶἱἷὐὖὑὗὠὦὡὧαᾶ¨῁ηῆ᾿῏ιῖϊῗ῾῟υῦϋῧωῶ" },
    MarkedLetters { mark: '\u{345}', pairs: "ἀᾀἁᾁἂᾂἃᾃἄᾄἅᾅἆᾆἇᾇἈᾈἉᾉἊᾊἋᾋἌᾌἍᾍἎᾎἏᾏἠᾐἡᾑἢᾒἣᾓἤᾔἥᾕἦᾖἧᾗἨᾘἩᾙἪᾚἫᾛἬᾜἭᾝἮᾞἯᾟὠᾠὡᾡὢᾢὣᾣὤᾤὥᾥ\
        ὦᾦὧᾧὨᾨὩᾩὪᾪὫᾫὬᾬὭᾭὮᾮὯᾯὰᾲαᾳάᾴᾶᾷΑᾼὴῂηῃήῄῆῇΗῌὼῲωῳώῴῶῷΩῼ" },
    MarkedLetters { mark: '\u{3099}', pairs: "かがきぎくぐけげこごさざしじすずせぜそぞただちぢつづてでとどはばひびふぶへべほぼうゔゝゞカガキギクグケゲコゴサザシジスズセゼソゾタダチヂツヅテデトドハバ\
        ヒビフブヘベホボウヴワヷヰヸヱヹヲヺヽヾ" },
    MarkedLetters { mark: '\u{309a}', pairs: "はぱひぴふぷへぺほぽハパヒピフプヘペホポ" },
];

/// A letter without its mark.
#[derive(Clone, Copy)]
struct SplitLetter {
    letter: char,
    mark: char,
}

/// Letters with a mark, each with its parts.
static SPLIT_LETTERS: LazyLock<HashMap<char, SplitLetter>> = LazyLock::new(|| {
    let mut split = HashMap::new();
    for MarkedLetters { mark, pairs } in MARKED_LETTERS {
        let letters: Vec<char> = pairs.chars().collect();
        for pair in letters.chunks_exact(2) {
            split.insert(pair[1], SplitLetter { letter: pair[0], mark: *mark });
        }
    }
    split
});

/// Returns a text that is equal for texts that differ only in case or in the composition of letters.
pub(crate) fn fold(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return match text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => Cow::Owned(text.to_ascii_lowercase()),
            false => Cow::Borrowed(text),
        };
    }
    let mut folded = Vec::with_capacity(text.len());
    let lower = text.chars().flat_map(char::to_lowercase);
    for char in lower.flat_map(char::to_uppercase).flat_map(char::to_lowercase) {
        push_split(char, &mut folded);
    }
    // Marks on one letter have no order.
    for marks in folded.chunk_by_mut(|one, other| is_mark(*one) && is_mark(*other)) {
        marks.sort_unstable();
    }
    Cow::Owned(folded.into_iter().collect())
}

/// Appends a character without its marks, then the marks.
fn push_split(char: char, out: &mut Vec<char>) {
    if let Some(SplitLetter { letter, mark }) = SPLIT_LETTERS.get(&char) {
        push_split(*letter, out);
        out.push(*mark);
    } else if !push_split_hangul(char, out) {
        out.push(char);
    }
}

/// Appends the parts of a Hangul syllable, which are computed. Returns false for any other character.
fn push_split_hangul(char: char, out: &mut Vec<char>) -> bool {
    const FIRST_SYLLABLE: u32 = 0xac00;
    const LAST_SYLLABLE: u32 = 0xd7a3;
    const LEADS: u32 = 0x1100;
    const VOWELS: u32 = 0x1161;
    const TAILS: u32 = 0x11a7;
    const TAIL_COUNT: u32 = 28;
    const SYLLABLES_PER_LEAD: u32 = 21 * TAIL_COUNT;
    let code = u32::from(char);
    if !(FIRST_SYLLABLE..=LAST_SYLLABLE).contains(&code) {
        return false;
    }
    let index = code - FIRST_SYLLABLE;
    let tail = index % TAIL_COUNT;
    let parts = [
        Some(LEADS + index / SYLLABLES_PER_LEAD),
        Some(VOWELS + index % SYLLABLES_PER_LEAD / TAIL_COUNT),
        (tail > 0).then_some(TAILS + tail),
    ];
    out.extend(parts.into_iter().flatten().filter_map(char::from_u32));
    true
}

fn is_mark(char: char) -> bool {
    matches!(char, '\u{300}'..='\u{36f}' | '\u{3099}' | '\u{309a}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_and_composition_do_not_matter() {
        for (one, other) in [
            ("Secret", "sECRET"),
            ("Geh\u{e9}im", "gehe\u{301}im"),
            ("\u{c5}", "a\u{30a}"),
            ("\u{1ea4}", "a\u{302}\u{301}"),
            ("\u{1e69}", "s\u{307}\u{323}"),
            ("\u{44}\u{17f}", "ds"),
            ("\u{212a}", "k"),
            ("Stra\u{df}e", "STRASSE"),
            ("\u{d55c}", "\u{1112}\u{1161}\u{11ab}"),
            ("\u{30ac}", "\u{30ab}\u{3099}"),
            ("\u{419}", "\u{438}\u{306}"),
        ] {
            assert_eq!(fold(one), fold(other), "{one} {other}");
        }
        assert_ne!(fold("\u{e9}"), fold("e"));
        assert!(matches!(fold("plain"), Cow::Borrowed("plain")));
    }

    #[test]
    fn folding_twice_changes_nothing() {
        for char in ('\0'..=char::MAX).filter(|char| u32::from(*char) < 0x3_0000) {
            let once = fold(char.encode_utf8(&mut [0; 4])).into_owned();
            assert_eq!(fold(&once), once, "{char:?}");
        }
    }
}
