"""Whether the words of a mail opt out.

This is generous: a person taken off by mistake costs us a contact, and a person written to after
asking us to stop gets spam. It knows sentences in English, German, French and Spanish, and the
usual words in Italian, Portuguese and Dutch. "Not interested" does not count: it is a reply, which
ends the campaign by itself.

Two kinds of sentence look like a wish and are not: those about other people ("how do I unsubscribe
my customers?"), and those in the footers of companies ("if you no longer wish to
receive …"). Quotations are left out before (`quoting.py`).

A text is judged by sentence and by clause: a clause that says only "stop" is a wish, whatever
stands around it ("Hi Ana, please stop. Best regards, Bo").
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_MOST = 20_000
"""Maximum characters that are read."""
_FIRST_LINES = 4
"""A word alone counts on the first lines; further down it is a link in a signature."""

_APOSTROPHES = re.compile(r"['\u2019\u02bc`\u00b4]")
_ENDS = re.compile(r"[.!?;]+(?=\s|$)|\n\s*\n")
_CLAUSES = re.compile(r"[,:()\u2013\u2014]|\s-+\s|(?<!.{40})\n")
"""Separates clauses. A line break does so only after a short line: long ones are wrapped."""
_ADDRESS = re.compile(r"[^\s@<>()]{1,64}@[^\s@<>()]{1,64}")
_MISSPELT = re.compile(r"\bun ?su[bscri]{3,8}e?(?=d?\b)")

_WORDS = {
    "MAIL": r"(e ?mails?|mails?|messages?|newsletters?|spam|correspondence|communications?)",
    "MAILING": r"(e ?mailing|mailing|contacting|writing|messaging)",
    "STOP": r"(stop|quit|cease|discontinue|refrain from)",
    "POST": r"(e ?mails?|mails?|nachrichten|newsletter|werb\w*|post|zusendungen)",
    "COURRIEL": r"(e ?mails?|mails?|messages?|courriels?|newsletters?)",
    "MINE": r"(\w+ )?(e ?mail|mail|address|name|details|data|contact|account|info)\w*",
    "ME": r"(me|us|(my|our) <MINE>|this (e ?mail |mail )?(address|account)|this (e ?mail|mailbox))",
    "MORE": r"(again|any ?more|any longer|further|ever|any|more|such|these|this|those|your)",
    "LISTS": r"(this|your|the|all|any)( \w+){0,2} (lists?|newsletters?|mailings?|database)",
    "LIST": r"(from|off) (<LISTS>|(mailing |e ?mail )?lists?)",
    "HELLO": r"(hi|hello|hey|dear|hallo|hola|bonjour|liebe|lieber)( \w+)?",
    "POLITE": r"(please|pls|plz|kindly|just|no|thanks|thank you|ok|bitte|danke|graag|<MERCI>)",
    "MERCI": r"(merci|svp|gracias|grazie)",
    "DONT": r"(no longer|do not|dont|wouldnt|would not|never)( really| ever)?",
    "NOT": r"(?<!\bi )(?<!\bwe )(do not|dont|never|please not)( ever| please| you)*",
}
"""What patterns have as `<NAME>`."""


def _any_of(lines: str) -> re.Pattern[str]:
    """One pattern per line. Texts have no accents, no apostrophes and single spaces by then."""
    patterns = "|".join(f"(?:{line.strip()})" for line in lines.strip().splitlines())
    while names := set(re.findall(r"<([A-Z]+)>", patterns)):
        for name in names:
            patterns = patterns.replace(f"<{name}>", _WORDS[name])
    return re.compile(patterns)


_LEAVE = (
    "unsubscribed?|unsub|stop+|remove(?! (it|this|all|the|these|your)\\b)|opt ?out|take me off"
    "|go away|leave me alone|no more <MAIL>|keine (weiteren? )?<POST>|stoppen sie( das)?"
    "|abmelden|abbestellen|austragen"
    "|abmeldung( (vom|von|aus)( \\w+)? (newsletter|verteiler|\\w*liste|mails?|werbung))?"
    "|de baja|desinscrire|desinscription|desabonner|desabonnement|d?arreter|arretez"
    "|cancellami|disiscrivimi|descadastrar|afmelden|uitschrijven"
)
_TAIL = "( me| us| this| it| all| the| these| your| now| immediately| <MAIL>| <LIST>| <POLITE>)*"
_CLAUSE = _any_of(f"(<HELLO> )?((<POLITE>|and|so|but|then) )*({_LEAVE}){_TAIL}")
"""A clause that says nothing else."""
_ALONE = _any_of(
    f"(<HELLO> )?(<POLITE> )*({_LEAVE}|remove|cancel|quit|end|no more|loschen|baja|arret){_TAIL}"
)
"""A line that says nothing else."""
_CLEAR = _any_of(
    r"""
    \b(unsubscribe|unsub|opt|remove|delete|erase|drop|deregister|exclude)( all| any)?( of)? <ME>\b
    \b(remove|delete|erase|drop|exclude|take) (my|our)( \w+){1,3} (from|off) <LISTS>\b
    \b(get|come|be) (off|out of) <LISTS>\b
    \b(like|want|wish|ask|asked|prefer|request) to be (removed|deleted|taken off)\b
    (?<!not )(?<!dont )(?<!never )\b(please|pls|kindly) stop( it| this| that| now)*$
    \b(withdraw|revoke|retract)\w*( \w+){0,2} consent\b
    \bobject to (the )?(processing|use|storage|storing|using)( \w+){0,2} (my|our)\b
    \b(take|get|strike|cross|scratch|pull|leave) <ME> (off|out|from)\b
    \b(id?|wed?)( \w+){0,4} (unsubscribed?|opt(ed|ing)? out)( now| immediately| please| <LIST>)*$
    \b(id?|wed?|me|us|my|our|please)\b.{0,60}\b(be|get|being) (unsubscribed|opted out|left alone)\b
    \b(id?|wed?|me|us|my|our|please)\b.{0,60}\b(be|get|being) (removed|taken|deleted) (off|from)\b
    \b<STOP> <MAILING>\b(?! (our|my) )
    \b<STOP> (spamming|bothering|bugging|pestering|harassing|soliciting)\b
    \b<STOP> sending( (me|us|these|this|those|any|your|more|such)\b| <MAIL>|$)
    \b(stop|end|cease) (with )?(these|the|your|all|this|all these|all your)( \w+)? <MAIL>\b
    <NOT> (e ?mail|mail|write|contact|message|bother|spam|pester)( to)?( here\b| <MORE>\b|$)
    <NOT> (bother|spam|pester) <ME>\b
    <NOT> (e ?mail|mail|write|contact|message)( to)? <ME>\b(?! (by|over|via|on) )
    <NOT> send( me| us)?( <MORE>\b| <MAIL>\b| anything| stuff)
    \bno (more|further)( of (these|this|your|those)| contact| <MAIL>)\b
    \b<DONT> (want|wish|like|care)\b.{0,40}\breceiv\w+
    \b<DONT> (want|wish|like|care)\b.{0,40}\bhear(ing)? (from|about)\b
    \b<DONT> (want|wish|like)\b.{0,40}\b(contacted|e ?mailed|mailed)\b
    \b<DONT> (want|wish|like|need) (to get )?<MORE>( \w+)? <MAIL>\b
    \b(never|didnt|did not) (agreed?|consent(ed)?) to\b
    \b(i|ive|we|weve)( have)? (never|didnt|did not) (sign(ed)? up|subscribed?|opt(ed)? in)\b
    \b(never|didnt|did not) ask(ed)? for (this|these|your)( \w+)? ?<MAIL>?$
    \bleave (me|us) alone\b|\blose my (e ?mail|address|number)\b|\b(fuck|piss|bugger) off\b
    \b(this is|its|thats|stop) (the )?spam\b|\b(report|mark)\w*( you| this| it)?( as| for) spam\b
    \bcancel (my|our|the|this) subscription\b
    (?<!\bich )(?<!\bwir )\b(streichen?|losch\w*|entfern\w*)( sie)?( bitte)? (mich|uns|meine\w*)\b
    \b(melden?|tragen?|nehmen?|nimm)( sie)?( bitte)? (mich|uns)\b.{0,40}\b(ab|aus|raus|heraus)\b
    \b(mich|uns|meine (adresse|daten))\b.{0,40}\b(abmelden|abzumelden|austragen|streichen|loschen)\b
    \b(mich|uns|meine (adresse|daten))\b.{0,40}\bentfernen\b
    \b(mich|uns|meine (adresse|daten))\b.{0,40}\bvon (der|dieser|ihrer|eurer|deiner) (\w+)?liste\b
    \bhor(en|t)?( sie| bitte)* auf\b.{0,40}(schreib\w*|schick\w*|mail\w*|belastig\w*|damit)\b
    \bbitte( \w+){0,3} aufhoren\b
    \bwidersprech\w*\b.{0,40}\b(nutzung|verwendung|verarbeitung|speicherung|werb\w*|zusendung)\b
    \bwiderruf\w*\b.{0,40}\b(einwilligung|zustimmung)\b
    \baus (dem|der|diesem|ihrem|ihrer|eurem|eurer|deinem|deiner) (\w+)?(verteiler|liste|datenbank)\b
    \bkeine? (weitere[nrms]?|solche[nr]?|zukunftigen?)( \w+)? ?(<POST>|kontakt|schreiben)
    \bkeine? <POST>( mehr| bitte| an mich)\b
    \b(bitte|mochten?|wunschen?|will|wollen)\b.{0,40}\bkeine? <POST>\b
    \b(nicht|nie)( mehr| wieder| weiter)+ (an)?(schreiben|kontaktier\w*|mailen|belastig\w*|melden)\b
    \b(schreib\w*|kontaktier\w*|belastig\w*|mailen|melden)\b.{0,30}\b(nicht|nie) ?(mehr|wieder)\b
    \b(schick\w*|send\w*)\b.{0,30}\b(nichts|keine)( \w+)? ?(mehr|weiter)\b
    \blass\w*( sie)? (mich|uns)( bitte)? in ruhe\b|\bbestellen?\b.{0,40}\bab$
    \b(retir|supprim|enlev|ray|desinscri|desabonn)\w* (moi|nous|mon adresse|mes donnees)\b
    \b(retir|supprim|enlev|ray)\w*\b.{0,40}\b(votre|vos|ta|cette) (listes?|base|fichiers?)\b
    \b(plus|jamais)\b.{0,30}\b(recevoir|contacte\w*|sollicit\w*|mecrire|nous ecrire)\b
    \b(recevoir|envoy\w+|envoie\w*) (plus|jamais|aucun)\b
    \bm?(ecri\w+|contact\w+|sollicit\w+)( moi| nous)? (plus|jamais)\b
    \bplus (de|d|aucun|un seul) ?<COURRIEL>\b
    \barret\w*( de| d)? ?(m ?|nous |me )?(envoy|ecri|contact|spam|sollicit|harcel)\w*
    \b(merci|priere|veuillez)( de)? d?arreter\b
    \blaiss\w* (moi|nous) (tranquilles?|en paix)\b
    \b(dar(me|nos|se)?|dame|den|denme|deme|denos|dadme|dad[oa]s?|causar|quiero) (de |la )?baja\b
    \bno (me|nos) (envi\w*|escrib\w*|mand\w*|contact\w*|vuelv\w*|molest\w*)\b
    \bno (quiero|queremos|deseo|deseamos)( \w+){0,3} (recibir|recibiendo|correos?)\b
    \b(elimin|borr|quit|sac|saqu)\w*(me|nos)\b( \w+){0,4} (lista|base|correo)
    \bno mas (correos?|mails?|e ?mails?|mensajes?)\b|\bdej\w* de (escrib|envi|mand|contact)\w*
    \b(cancella|rimuov\w+|togli\w*)(mi|temi|emi|etemi)\b
    \bnon (scriv|invia|manda|contatta)\w+(mi|ci)\b
    \bnon (voglio|desidero|vogliamo|desideriamo)( piu)? ricevere\b
    \bnao (quero|desejo|queremos)( mais)? receber\b|\bnao me (envi|escrev|mand|contact)\w+
    \b(remov|retir|exclu)\w* ?(me|nos|meu (e ?mail|nome|contato)) (da|de|desta|dessa)\b
    \b(schrijf|meld)( \w+){0,2} (me|mij|ons) (uit|af)\b|\bverwijder (me|mij|ons|mijn)\b
    \bgeen (verdere |nieuwe )?(e ?mails?|mails?|berichten)\b.{0,30}(meer|ontvangen|$)
    \b(haal|haalt|halen|neem|gooi)( \w+){0,2} (me|mij|ons|mijn \w+)( \w+){0,2} van (de|uw|je|deze)\b
    \bstop(pen)?( \w+){0,2} met( \w+){0,2} (e ?mailen|mailen|schrijven|sturen|spammen)\b
    \bniet meer (te )?(mailen|schrijven|contacteren|benaderen|contact)\b
    """
)
"""A wish of the writer's own, whatever else the sentence says."""
_PERHAPS = _any_of(
    r"""
    \bunsubscribe\b(?! <THING>)(?! (my|your|our|the|their|his|her|a)\b)
    \bopt(ing)? out\b(?! <THING>)(?! of the (plan|trial|contract))
    \b(abmelden|abzumelden|abbestellen|abzubestellen|austragen)\b
    \b(desinscri(re|s|vez|ption)|desabonn(er|ez|ement))\b
    \b(de ?suscrib\w+|desinscrib\w+|cancelar (mi|la|esta) suscripcion)\b
    \b(disiscriv\w+|descadastr\w+|cancelar (a |minha )?(inscricao|subscricao|assinatura))\b
    \b(afmelden|uitschrijven)\b
    """.replace(
        "<THING>",
        r"(rates?|links?|buttons?|pages?|headers?|features?|requests?|process|flow|handling|lists?"
        r"|management|options?|e ?mails?|mails?|functions?|tools?|numbers?)\b",
    )
)
"""The word itself, unless it names a thing, or the sentence is about other people."""
_OTHERS = _any_of(
    r"""
    \b(customers?|clients?|users?|people|person|subscribers?|readers?|recipients?|contacts|leads)\b
    \b(members|they|them|their|someone|somebody|anyone|everyone|rates?)\b
    \b(kunden|kundinnen|nutzer|empfanger|abonnenten|clientes|usuarios|abonnes|utilisateurs|klanten)\b
    """
)
_FORMULA = _any_of(
    r"""
    ^if you (no longer|do not|dont|would|wish|want|prefer|received|are not)\b(?!.*\b(me|my|stop)\b)
    ^to (unsubscribe|opt out|stop|be removed|change)\b
    ^you (can|may|are receiving|receive|have received)\b|^click\b
    ^(wenn|falls|sollten) sie\b|^(um|zum) (sich|abmelden|den)\b
    ^si vous\b|^pour (vous|se)\b|^si (no |ya no )?(desea|quiere|usted)|^para (darse|cancelar)\b
    ^als u\b|^se (non )?(vuoi|desideri)\b
    """
)
"""A sentence from a company's footer."""


def asks_to_stop(text: str) -> bool:
    """Whether the writer's own words ask for no more mail."""
    text = text[:_MOST]
    return any(map(says_only_stop, _first_lines(text))) or any(map(_asks, _sentences(text)))


def _first_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()][:_FIRST_LINES]


def _sentences(text: str) -> Iterator[str]:
    return (one for one in _ENDS.split(text) if one.strip())


def says_only_stop(line: str) -> bool:
    """Whether a line is such a wish and nothing else."""
    return bool(_ALONE.fullmatch(_spoken(line[:200])))


def _asks(sentence: str) -> bool:
    said = _spoken(sentence[:1000])
    if _FORMULA.search(said):
        return False
    if any(_CLAUSE.fullmatch(_spoken(one)) for one in _CLAUSES.split(sentence[:1000])):
        return True
    return bool(_CLEAR.search(said) or (_PERHAPS.search(said) and not _OTHERS.search(said)))


def _spoken(text: str) -> str:
    """Words with a space between them, in lower case and without accents. An address becomes
    `this address`: it is mostly the author's."""
    text = _ADDRESS.sub(" this address ", text)
    plain = unicodedata.normalize("NFKD", _APOSTROPHES.sub("", text.lower().replace("ß", "ss")))
    kept = "".join(one for one in plain if not unicodedata.combining(one))
    return _MISSPELT.sub("unsubscribe", " ".join(re.sub(r"[\W_]", " ", kept).split()))
