"""Language codes that text can be split by."""

from __future__ import annotations

import difflib

from bertpt.errors import RequestError

# Two-letter codes of ISO 639-1 and the longer codes that Wikipedias go by. sentencex itself takes any string
# and silently splits unknown ones by English rules.
LANGUAGES = frozenset(
    """
    aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en
    eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv
    ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne
    ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st
    su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
    ace ady als ami ang arc ary arz ast atj avk awa azb ban bar bcl bjn blk bpy bug bxr cbk cdo ceb chr chy ckb cmn
    crh csb dag dga din diq dsb dtp dty eml ext fat fon frp frr fur gag gan gcr glk gom gor got gpe gsw guc gur guw
    hak haw hif hsb hyw ilo inh jam jbo kaa kab kbd kbp kcg koi krc ksh lad lbe lez lfn lij lld lmo ltg lzh mad mai
    map mdf mhr min mni mnw mrj mwl myv mzn nah nan nap nds new nia nov nqo nrm nso olo pag pam pap pcd pcm pdc pfl
    pih pms pnb pnt pwn rmy roa rue rup sah sat scn sco sgs shi shn skr smn srn stq szl szy tay tcy tet tly tpi trv
    tum tyv udm vec vep vls vro war wuu xal xmf yue zea zgh
    bat-smg cbk-zam fiu-vro map-bms nds-nl roa-rup roa-tara zh-classical zh-min-nan zh-yue
    """.split()  # noqa: SIM905 - 300 quoted codes would be four times as long
)
_NAMES = {
    "arabic": "ar", "bulgarian": "bg", "catalan": "ca", "chinese": "zh", "czech": "cs", "danish": "da", "dutch": "nl",
    "english": "en", "finnish": "fi", "french": "fr", "german": "de", "greek": "el", "hebrew": "he", "hindi": "hi",
    "hungarian": "hu", "italian": "it", "japanese": "ja", "korean": "ko", "norwegian": "no", "persian": "fa",
    "polish": "pl", "portuguese": "pt", "romanian": "ro", "russian": "ru", "spanish": "es", "swedish": "sv",
    "turkish": "tr", "ukrainian": "uk", "vietnamese": "vi", "jp": "ja", "cn": "zh", "gr": "el", "dk": "da", "cz": "cs",
    "simple": "en", "eng": "en", "deu": "de", "ger": "de", "fra": "fr", "fre": "fr", "spa": "es", "ita": "it",
}  # fmt: skip


def language_code(language: str) -> str:
    """The code that the rules are looked up by: ``pt-BR`` and ``pt_BR`` give ``pt``.

    Raises:
        RequestError: no language goes by that code.
    """
    code = language.strip().lower().replace("_", "-")
    for candidate in (code, code.partition("-")[0]):
        if candidate in LANGUAGES:
            return candidate
    near = [_NAMES[name] for name in difflib.get_close_matches(code, _NAMES, 1, 0.8)]
    if not near and len(code) <= 3:
        near = difflib.get_close_matches(code, sorted(LANGUAGES), 3, 0.4)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; codes look like en, de, pt or zh"
    raise RequestError(f"corpus.language: no language has the code {language!r}{hint}")
